"""Mending what verification finds: plan, show, execute.

A damaged pack is retired: nothing is found in it any more, so that the next commit of the same chunks stores them
anew and heals the commits that lost them. What is whole in it, or lies elsewhere, moves into new packs. It is kept in
storage as long as anything is lost. A manifest document is in the catalog and in storage; one mends the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ckptstore.catalog.base import ChunkLocation, CommitRecord, NewPack, Rewrite
from ckptstore.chunkstore import ChunkStore, Piece
from ckptstore.chunkstore.grouping import groups
from ckptstore.errors import CkptStoreError, CorruptData, ObjectNotFound, StepNotFound
from ckptstore.format import document, version
from ckptstore.format.packs import TARGET_BYTES, pack_key
from ckptstore.operations.manifests import any_document, document_digests, unheld_digests, users_of
from ckptstore.operations.rescue import check_source, from_pack, from_store
from ckptstore.operations.rewrite import needs_at
from ckptstore.operations.session import writing_session
from ckptstore.operations.verify import Scope, verify
from ckptstore.progress import ProgressCallback

_BATCH_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did.

    Attributes:
        packs: damaged packs that were retired.
        chunks: chunks that were saved from them or found elsewhere.
        documents: manifest documents that were mended, in storage or in the catalog.
        lost: leaves that are still damaged, as "run@step path", or "run@step" for a whole commit.
    """

    packs: int
    chunks: int
    documents: int
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do now. Nothing is changed before `execute`.

    Attributes:
        packs: names of the damaged packs that would be retired.
        saved: chunks that can be saved: they are whole in a damaged pack, or lie elsewhere.
        documents: steps whose manifest document would be mended, as "run@step".
        lost: leaves that would stay damaged, as "run@step path", or "run@step" for a whole commit.
    """

    chunks: ChunkStore = field(repr=False)
    source: ChunkStore | None = field(repr=False)
    packs: tuple[str, ...]
    saved: int
    documents: tuple[str, ...]
    lost: tuple[str, ...]

    def execute(self) -> RepairReport:
        """Do it. May be done again after a crash.

        Raises:
            SessionFenced: a commit came to need a damaged pack in the meantime; repair again.
        """
        chunks, bad = self.chunks, set(self.packs)
        documents = sum(_mend(chunks, commit, self.source) for commit in _commits(chunks, set(self.documents)))
        saved = sum(_retire(chunks, pack, bad, self.source) for pack in self.packs)
        saved += _heal(chunks, self.source)
        if _note_resting(chunks):
            saved += _heal(chunks, self.source)
        lost = (*_unreadable(chunks), *_leaves(chunks, set(chunks.catalog.lost())))
        return RepairReport(len(self.packs), saved, documents, lost)


def plan_repair(
    chunks: ChunkStore, source: ChunkStore | None = None, progress: ProgressCallback | None = None
) -> RepairPlan:
    """Verify every byte, and look for what can be saved; see `Store.plan_repair`."""
    version.check_features(chunks.config.requires_write, "repair", chunks.storage.url)
    if source is not None:
        check_source(chunks, source)
    problems = verify(chunks, Scope(), progress).problems
    objects = {problem.object for problem in problems}
    packs = tuple(pack.name for pack in chunks.catalog.packs() if pack_key(pack.name) in objects)
    wanted = set(chunks.catalog.lost()).union(*(digests for pack in packs for digests in _needs(chunks, pack).values()))
    saved = _copies(chunks, wanted, set(packs)).keys() | {found for found, _ in _rescued(chunks, packs, source, wanted)}
    suspects = _commits(chunks, {leaf for problem in problems if not problem.digest for leaf in problem.affected})
    mended = {_address(commit): _whole_document(chunks, commit, source) is not None for commit in suspects}
    return RepairPlan(
        chunks=chunks,
        source=source,
        packs=packs,
        saved=len(saved),
        documents=tuple(sorted(address for address, can in mended.items() if can)),
        lost=(*sorted(address for address, can in mended.items() if not can), *_leaves(chunks, wanted - saved)),
    )


def _address(commit: CommitRecord) -> str:
    return f"{commit.run}@{commit.step}"


def _commits(chunks: ChunkStore, addresses: set[str]) -> list[CommitRecord]:
    return [commit for commit in chunks.catalog.commits(deleted=True) if _address(commit) in addresses]


# packs


def _needs(chunks: ChunkStore, pack: str) -> dict[str, set[bytes]]:
    """Commit id → the digests of the pack that it needs, for every commit that needs the pack."""
    held = {chunk.digest for chunk in chunks.catalog.pack_chunks(pack)}
    found: dict[str, set[bytes]] = {}
    for name in chunks.catalog.users(pack):
        commit = chunks.catalog.by_id(name)
        try:
            wanted = document_digests(any_document(chunks, commit), chunks.digest.size) if commit is not None else set()
        except CkptStoreError:
            wanted = held  # nobody can read that commit now, but its document may be brought back
        found[name] = held & wanted
    return found


def _copies(chunks: ChunkStore, wanted: set[bytes], bad: set[str]) -> dict[bytes, ChunkLocation]:
    """Those of the chunks that lie whole in good packs as well."""
    copies = chunks.catalog.copies(sorted(wanted))
    return {copy.digest: copy for copy in copies if copy.pack not in bad and not copy.base}


def _rescued(
    chunks: ChunkStore, packs: Sequence[str], source: ChunkStore | None, wanted: set[bytes]
) -> Iterator[tuple[bytes, memoryview]]:
    """Each chunk that is found in what is left of packs that are bad now or were earlier, in good ones, or in the other
    store.
    """
    missing = set(wanted)
    damaged = (*packs, *(pack.name for pack in chunks.catalog.packs() if pack.state == "damaged"))
    places = [partial(from_pack, chunks, pack) for pack in damaged] + [
        partial(from_store, store) for store in (chunks, source) if store is not None
    ]
    for find in places:
        if not missing:
            return
        for digest, raw in find(set(missing)):
            missing.discard(digest)
            yield digest, raw


def _retire(chunks: ChunkStore, pack: str, bad: set[str], source: ChunkStore | None) -> int:
    """Let commits need good copies instead of a bad pack; how many chunks were stored anew."""
    needs = _needs(chunks, pack)
    wanted = set().union(*needs.values())
    copies = _copies(chunks, wanted, bad)
    with writing_session(chunks.catalog) as session:
        own = _store(chunks, session, _rescued(chunks, [pack], source, wanted - copies.keys()))
        places = copies | {chunk.digest: chunk for new in own for chunk in new.chunks}
        lost = {commit: sorted(digests - places.keys()) for commit, digests in needs.items()}
        kept = {commit: digests & places.keys() for commit, digests in needs.items()}
        chunks.catalog.rewrite(session, Rewrite(own, [pack], needs_at(kept, places), lost, damaged=True))
    return sum(len(new.chunks) for new in own)


def _heal(chunks: ChunkStore, source: ChunkStore | None) -> int:
    """Bring back what was lost earlier and can be found now; the catalog gives it to the commits that need it."""
    lost = set(chunks.catalog.lost())
    if not lost:
        return 0
    with writing_session(chunks.catalog) as session:
        own = _store(chunks, session, _rescued(chunks, [], source, lost))
        chunks.catalog.rewrite(session, Rewrite(own, [], {}))
    return sum(len(new.chunks) for new in own)


def _note_resting(chunks: ChunkStore) -> bool:
    """What rests on what is lost is lost too, so that whoever brings it back, whole, heals the commits.

    Whether there was such that was not known yet.
    """
    known: dict[str, set[bytes]] = defaultdict(set)
    for digest, commits in chunks.catalog.lost().items():
        for commit in commits:
            known[commit].add(digest)
    found = {commit: _unheld(chunks, commit) - lost for commit, lost in known.items()}
    fresh = {commit: sorted(digests) for commit, digests in found.items() if digests}
    if fresh:
        with writing_session(chunks.catalog) as session:
            chunks.catalog.rewrite(session, Rewrite([], [], {commit: {} for commit in fresh}, fresh))
    return bool(fresh)


def _unheld(chunks: ChunkStore, commit: str) -> set[bytes]:
    try:
        return unheld_digests(chunks, commit)
    except (CorruptData, StepNotFound):
        return set()  # nobody knows, or needs it


def _store(chunks: ChunkStore, session: str, found: Iterator[tuple[bytes, memoryview]]) -> list[NewPack]:
    with chunks.writer(session) as writer:
        for batch in groups(found, lambda item: len(item[1]), TARGET_BYTES, _BATCH_CHUNKS):
            writer.store({digest: Piece(raw, copied=True) for digest, raw in batch})
        return writer.finish()[0]


def _leaves(chunks: ChunkStore, digests: set[bytes]) -> tuple[str, ...]:
    return tuple(sorted({leaf for leaves in users_of(chunks, digests).values() for leaf in leaves}))


# manifest documents


def _unreadable(chunks: ChunkStore) -> list[str]:
    return [_address(commit) for commit in chunks.catalog.commits(deleted=True) if not _is_readable(chunks, commit)]


def _is_readable(chunks: ChunkStore, commit: CommitRecord) -> bool:
    return _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id)) is not None


def _mend(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bool:
    """Put a whole document wherever it is not."""
    whole = _whole_document(chunks, commit, source)
    if whole is None:
        return False
    if _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id)) is None:
        chunks.catalog.replace_manifest(commit.id, whole)
    if _valid(chunks, commit, lambda: chunks.storage.get(commit.document)) != whole:
        chunks.storage.delete(commit.document)
        chunks.storage.put(commit.document, [whole])
    return True


def _whole_document(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bytes | None:
    places = [lambda: chunks.catalog.manifest(commit.id), lambda: chunks.storage.get(commit.document)]
    if source is not None:
        places.append(lambda: source.catalog.manifest(commit.id))
    return next((data for place in places if (data := _valid(chunks, commit, place)) is not None), None)


def _valid(chunks: ChunkStore, commit: CommitRecord, read: Callable[[], bytes]) -> bytes | None:
    """The document's bytes if they are those of the commit."""
    try:
        data = read()
        written = chunks.decode_document(data, commit.document)
    except (CorruptData, ObjectNotFound, StepNotFound):
        return None
    digest = chunks.digest.compute(document.encode_manifest(written.manifest))
    return data if (written.id, written.content, digest) == (commit.id, commit.content, commit.content) else None
