"""Mending what verification finds: plan, show, execute.

A damaged pack is retired: nothing is found in it any more, so that the next commit of the same chunks stores them
anew and heals the commits that lost them. What is whole in it, or lies elsewhere, moves into new packs. It is kept in
storage as long as anything is lost. What rests on a chunk that goes, and can be read all the same, is stored whole
before it goes. A manifest document is in the catalog and in storage; one mends the other. The catalog mends documents
of tags. The wrapped key of an encrypted store is stored again from a process that has the store open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ckptstore.catalog.records import DELETED, ChunkLocation, CommitRecord, NewPack, Rewrite, TagRecord
from ckptstore.chunkstore import ChunkStore, Piece
from ckptstore.chunkstore.grouping import groups
from ckptstore.format import version
from ckptstore.format.keys import is_key_key
from ckptstore.format.packs import TARGET_BYTES, pack_key
from ckptstore.operations.check_tags import damaged_tags
from ckptstore.operations.manifests import any_document, document_digests, users_of
from ckptstore.operations.mend_documents import copies_of, mend, unreadable
from ckptstore.operations.problem import DAMAGE
from ckptstore.operations.rescue import check_source, from_pack, from_store
from ckptstore.operations.rewrite import needs_at
from ckptstore.operations.session import writing_session
from ckptstore.operations.tags import store_again
from ckptstore.operations.verify import Scope, check_place, verify
from ckptstore.operations.wrapped_key import store_key_again
from ckptstore.progress import ProgressCallback, meter

_BATCH_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did.

    Attributes:
        packs: damaged packs that were retired.
        chunks: chunks that were saved from them or found elsewhere.
        documents: manifest documents that were mended, in storage or in the catalog.
        tags: those whose document was stored anew.
        lost: leaves that are still damaged, as "run@step path", or "run@step" for a whole commit; a step that is
            deleted, and can still be restored, is shown as "run@step (deleted)".
        key: whether the wrapped key of an encrypted store was stored again.
    """

    packs: int
    chunks: int
    documents: int
    tags: int
    lost: tuple[str, ...]
    key: bool = False


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do now. Nothing is changed before `execute`.

    Attributes:
        packs: names of the damaged packs that would be retired.
        saved: chunks that can be saved: they are whole in a damaged pack, or lie elsewhere, or rest on what is damaged
            and can be read all the same.
        documents: steps whose manifest document would be mended, as "run@step" or "run@step (deleted)".
        tags: those whose document would be stored anew, as "run@tag".
        lost: leaves that would stay damaged, named as in `RepairReport`. At most these: what
            can be read only once bad copies are gone, or others have come back, is not tried before.
        key: whether the wrapped key of an encrypted store would be stored again, as it was when the store was opened.
    """

    chunks: ChunkStore = field(repr=False)
    source: ChunkStore | None = field(repr=False)
    packs: tuple[str, ...]
    saved: int
    documents: tuple[str, ...]
    tags: tuple[str, ...]
    lost: tuple[str, ...]
    key: bool

    def execute(self, progress: ProgressCallback | None = None) -> RepairReport:
        """Do it. May be done again after a crash.

        Args:
            progress: called with (stage, bytes done, bytes in all), of the packs that are damaged, or were found so
                earlier. What it raises ends this between two packs.

        Raises:
            SessionFenced: a commit came to need a damaged pack in the meantime, or gc took this for dead; repair again.
            NotAStore: the store was moved away meanwhile.
        """
        check_place(self.chunks)
        chunks, bad, saved = self.chunks, set(self.packs), 0
        key = store_key_again(chunks)
        known = chunks.catalog.packs()
        sizes = {pack.name: pack.size for pack in known if pack.name in bad or pack.state == "damaged"}
        advance = meter(progress, "repair", sum(sizes.values()))
        documents = sum(mend(chunks, commit, self.source) for commit in _commits(chunks, self.documents))
        named = [record for record in chunks.catalog.tags() if _tag_address(record) in self.tags]
        tags = sum(store_again(chunks, record) for record in damaged_tags(chunks, named))
        for pack in self.packs:
            saved += _retire(chunks, pack, bad, self.source)
            advance(sizes.pop(pack, 0))
        saved += _heal(chunks, self.source)
        if sizes:
            advance(sum(sizes.values()))
        return RepairReport(len(self.packs), saved, documents, tags, _still_lost(chunks), key)


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
    needs = _needs(chunks, packs)
    wanted = set(chunks.catalog.lost()).union(*needs.values())
    saved = _copies(chunks, wanted, set(packs)).keys() | {found for found, _ in _rescued(chunks, packs, source, wanted)}
    resting = set().union(*_resting(chunks, needs, saved, set(packs)).values())
    saved |= {found for found, _ in _rescued(chunks, packs, source, resting)}
    suspects = _commits(chunks, {leaf for problem in problems if not problem.digest for leaf in problem.affected})
    copies = [(commit, copies_of(chunks, commit, source)) for commit in suspects]
    nowhere = [commit for commit, found in copies if found.whole is None]
    lost = {commit.label for commit in nowhere if chunks.catalog.by_id(commit.id) is not None}  # not purged meanwhile
    return RepairPlan(
        chunks=chunks,
        source=source,
        packs=packs,
        saved=len(saved),
        documents=tuple(sorted({commit.label for commit, found in copies if found.lacking})),
        tags=tuple(sorted(_tag_address(record) for record in chunks.catalog.tags() if record.document in objects)),
        lost=(*sorted(lost), *_leaves(users_of(chunks, wanted - saved, saved))),
        key=any(map(is_key_key, objects)),
    )


def _tag_address(record: TagRecord) -> str:
    return f"{record.run}@{record.name}"


def _commits(chunks: ChunkStore, affected: Collection[str]) -> list[CommitRecord]:
    """Live and deleted ones, whichever they were when they were reported."""
    addresses = {commit.removesuffix(DELETED) for commit in affected}
    return [commit for commit in chunks.catalog.commits(deleted=True) if commit.address in addresses]


# packs


def _needs(chunks: ChunkStore, packs: Sequence[str]) -> dict[str, set[bytes]]:
    """Commit id → the digests of the packs that it needs, for every commit that needs one of them."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for pack in packs:
        held = {chunk.digest for chunk in chunks.catalog.pack_chunks(pack)}
        for commit in chunks.catalog.users(pack):
            found[commit] |= held & _digests(chunks, commit)
    return found


def _digests(chunks: ChunkStore, name: str) -> set[bytes]:
    """All that a commit id needs, so far as anybody can know."""
    commit = chunks.catalog.by_id(name)
    try:
        return document_digests(any_document(chunks, commit), chunks.digest.size) if commit is not None else set()
    except DAMAGE:  # nobody can read that commit now, but its document may be brought back
        return {chunk.digest for pack in chunks.catalog.packs(name) for chunk in chunks.catalog.pack_chunks(pack.name)}


def _resting(
    chunks: ChunkStore, needs: Mapping[str, set[bytes]], saved: Collection[bytes], bad: set[str]
) -> dict[str, set[bytes]]:
    """Commit id → all else it needs that rests on those of the chunks which are not saved."""
    losing = {commit for commit, digests in needs.items() if not digests.issubset(saved)}
    return {commit: _resting_on(chunks, commit, needs[commit], saved, bad) for commit in losing}


def _resting_on(
    chunks: ChunkStore, commit: str, needed: set[bytes], saved: Collection[bytes], bad: set[str]
) -> set[bytes]:
    """Without what a good pack that the commit needs holds whole, or what is saved, and what rests on such alone."""
    copies = chunks.catalog.copies(sorted(_digests(chunks, commit)))
    good = {pack.name for pack in chunks.catalog.packs(commit)} - bad
    whole = {copy.digest for copy in copies if not copy.base and copy.pack in good}.union(saved)
    found = fresh = needed.difference(saved)
    while fresh:
        fresh = {copy.digest for copy in copies if fresh.intersection(copy.bases)} - found - whole
        found = found | fresh
    return found - needed


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
    needs = _needs(chunks, [pack])
    with writing_session(chunks.catalog) as session:
        own, places = _saved(chunks, session, pack, bad, source, needs)
        resting = _resting(chunks, needs, places, bad)  # to be read before what it rests on goes
        more, others = _saved(chunks, session, pack, bad, source, resting)
        own, places = own + more, places | others
        needs = {commit: digests | resting.get(commit, set()) for commit, digests in needs.items()}
        lost = {commit: sorted(digests - places.keys()) for commit, digests in needs.items()}
        kept = {commit: digests & places.keys() for commit, digests in needs.items()}
        chunks.catalog.rewrite(session, Rewrite(own, [pack], needs_at(kept, places), lost, damaged=True))
    return sum(len(new.chunks) for new in own)


def _saved(
    chunks: ChunkStore,
    session: str,
    pack: str,
    bad: set[str],
    source: ChunkStore | None,
    needs: Mapping[str, set[bytes]],
) -> tuple[list[NewPack], dict[bytes, ChunkLocation]]:
    """New packs of what could be read, and where this and what is whole in good packs lies."""
    wanted = set().union(*needs.values())
    copies = _copies(chunks, wanted, bad)
    own = _store(chunks, session, _rescued(chunks, [pack], source, wanted - copies.keys()))
    return own, copies | {chunk.digest: chunk for new in own for chunk in new.chunks}


def _heal(chunks: ChunkStore, source: ChunkStore | None) -> int:
    """Bring back what was lost earlier and can be found now; the catalog gives it to the commits that need it.

    What rests on that may be found then, and so on.
    """
    healed = 0
    while lost := set(chunks.catalog.lost()):
        with writing_session(chunks.catalog) as session:
            own = _store(chunks, session, _rescued(chunks, [], source, lost))
            chunks.catalog.rewrite(session, Rewrite(own, [], {}))
        if not own:
            break
        healed += sum(len(new.chunks) for new in own)
    return healed


def _store(chunks: ChunkStore, session: str, found: Iterator[tuple[bytes, memoryview]]) -> list[NewPack]:
    with chunks.writer(session) as writer:
        for batch in groups(found, lambda item: len(item[1]), TARGET_BYTES, _BATCH_CHUNKS):
            writer.store({digest: Piece(raw, copied=True) for digest, raw in batch})
        return writer.finish()[0]


def _still_lost(chunks: ChunkStore) -> tuple[str, ...]:
    """Commits and leaves. Nothing is lost any more that only those chunks rested on which are whole by now."""
    lost, commits = set(chunks.catalog.lost()), unreadable(chunks)
    users = users_of(chunks, lost)
    needless = lost - users.keys()
    if needless and not commits:  # nobody knows what these need
        chunks.catalog.forget_lost(sorted(needless))
    return (*commits, *_leaves(users))


def _leaves(users: Mapping[bytes, Collection[str]]) -> tuple[str, ...]:
    return tuple(sorted({leaf for leaves in users.values() for leaf in leaves}))
