"""Mending what verification finds: plan, show, execute.

A damaged pack is retired: nothing is found in it any more, so that the next commit of the same chunks stores them
anew and heals the commits that lost them. What is whole in it, or lies elsewhere, moves into new packs. It is kept in
storage as long as anything is lost. What rests on a chunk that goes, and can be read all the same, is stored whole
before it goes. A manifest document is in the catalog and in storage; one mends the other. The catalog mends documents
of tags. The wrapped key of an encrypted store is stored again from a process that has the store open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ckptstore.catalog.records import DELETED, CommitRecord, TagRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.format import version
from ckptstore.format.keys import is_key_key
from ckptstore.format.packs import pack_key
from ckptstore.operations.manifests import users_of
from ckptstore.operations.mending.documents import copies_of, mend, unreadable
from ckptstore.operations.mending.packs import heal, needs_of, rescued, resting_on, retire, whole_copies
from ckptstore.operations.mending.rescue import check_source
from ckptstore.operations.tags import store_again
from ckptstore.operations.verifying.tags import damaged_tags
from ckptstore.operations.verifying.verify import Scope, check_place, verify
from ckptstore.operations.wrapped_key import store_key_again
from ckptstore.progress import ProgressCallback, meter


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
            saved += retire(chunks, pack, bad, self.source)
            advance(sizes.pop(pack, 0))
        saved += heal(chunks, self.source)
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
    needs = needs_of(chunks, packs)
    wanted = set(chunks.catalog.lost()).union(*needs.values())
    saved = whole_copies(chunks, wanted, set(packs)).keys() | {
        found for found, _ in rescued(chunks, packs, source, wanted)
    }
    resting = set().union(*resting_on(chunks, needs, saved, set(packs)).values())
    saved |= {found for found, _ in rescued(chunks, packs, source, resting)}
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
