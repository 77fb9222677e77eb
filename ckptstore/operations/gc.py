"""Dropping old steps: plan, show, execute.

A policy marks commits of one run deleted; they can be restored until `grace` seconds have passed, and who reads one
has that long to finish. Then they are purged: what no other commit needs is condemned under the catalog's lock and
only after that removed from storage, so every step can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ckptstore.batching import batched
from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CommitRecord, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import (
    GcRefused,
    InvalidArgument,
    ObjectNotFound,
    SessionFenced,
    StepNotFound,
    StepProtected,
    StorageFull,
)
from ckptstore.format import version
from ckptstore.format.document import PREFIX as DOCUMENTS
from ckptstore.format.keys import PREFIX as KEYS
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.format.packs import pack_key
from ckptstore.format.tagging import PREFIX as TAGS
from ckptstore.operations.orphans import check_not_older, orphans
from ckptstore.operations.retention import KeepLast, Policy, kept_by
from ckptstore.operations.rewrite import rewrite_packs, wasteful_packs
from ckptstore.operations.seconds import are_seconds
from ckptstore.operations.tags import store_missing
from ckptstore.progress import ProgressCallback, check_callback, meter
from ckptstore.storage.base import Storage, Sweeping

DEFAULT_GRACE = 900.0
"""Seconds for which a deleted step can be restored."""

DEFAULT_MOST = 0.9
"""The largest share of a run's commits that is deleted without a look at the plan."""

_UNFINISHED_SECONDS = 3600.0
"""How long nobody must have written to an unfinished file; a slow disk may need minutes to flush one."""
_SOUND: WeakKeyDictionary[Catalog, bool] = WeakKeyDictionary()
"""Catalogs that were looked at, and whether also where they record chunks."""

_WRITTEN = (PACKS, DOCUMENTS, TAGS, KEYS, version.KEY)
"""Where writers of this store may have left something; what else lies there is somebody else's."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a gc did.

    Attributes:
        deleted: steps of the run that the policy marked deleted.
        purged: documents removed from storage, of commits, and of tags that were moved or removed.
        packs: packs removed from storage.
        freed_bytes: their size.
        rewritten: packs of which little was needed any more, and that little was moved.
        written_bytes: size of the packs that it was moved into.
        fenced: writers whose lease had run out.
        unfinished: files removed that killed writers had begun.
    """

    deleted: tuple[int, ...]
    purged: int
    packs: int
    freed_bytes: int
    rewritten: int
    written_bytes: int
    fenced: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class GcPlan:
    """What a gc would do now, and why. Nothing is changed before `execute`.

    Attributes:
        run: the run whose policy was applied.
        delete: live commits that the policy does not keep; restorable for `grace` seconds.
        keep: id of every commit that stays → the reason.
        condemned: what is collectable already, from earlier deletions and from crashes.
        freed_bytes: size of the collectable packs.
        rewrite: names of packs of which commits need less than half.
        orphans: what the catalog knows nothing of, or knows to be gone, and is to be removed from storage.
        grace: seconds a deleted step can be restored.
    """

    chunks: ChunkStore = field(repr=False)
    run: str
    delete: tuple[CommitRecord, ...]
    keep: dict[str, str]
    condemned: Objects
    freed_bytes: int
    rewrite: tuple[str, ...]
    orphans: Objects
    grace: float

    def execute(self, progress: ProgressCallback | None = None) -> GcReport:
        """Do it. Commits that were tagged since the plan was made stay.

        Args:
            progress: called with (stage, bytes done, bytes in all), of the packs that go. What it raises ends this
                between two steps; another gc does the rest.

        Raises:
            GcRefused: the catalog's file is damaged, a pack that a commit needs is missing from storage, or there is a
                whole commit that the catalog does not know, which is older then; nothing was removed.
        """
        storage, catalog = self.chunks.storage, self.chunks.catalog
        check_callback(progress)
        _check_undamaged(catalog, rewriting=bool(self.rewrite))
        _check_needed_packs(storage, catalog)
        fenced = catalog.fence_expired()
        if self.delete or self.rewrite or catalog.garbage(self.grace) != Objects([], []):
            check_not_older(self.chunks)
        steps = self._delete_steps()
        going = _Going(self, progress)
        gone = list(self._collect(going))
        rewritten, written = rewrite_packs(self.chunks, self.rewrite, going.dealt_with)
        if rewritten:
            gone += self._collect(going)
        gone.append((self.orphans, remove(storage, self.orphans)))
        going.over()
        with suppress(StorageFull, SessionFenced):  # the next one does it
            store_missing(self.chunks)
        return GcReport(
            deleted=steps,
            purged=sum(len(objects.documents) for objects, _ in gone),
            packs=sum(len(objects.packs) for objects, _ in gone),
            freed_bytes=sum(freed for _, freed in gone),
            rewritten=rewritten,
            written_bytes=written,
            fenced=fenced,
            unfinished=_sweep(storage),
        )

    def _collect(self, going: _Going) -> Iterator[tuple[Objects, int]]:
        """What was condemned and removed, and its bytes, in parts, since a commit waits while one is condemned."""
        catalog = self.chunks.catalog

        def settle(done: Objects) -> None:
            catalog.settle(done)
            going.dealt_with(done.packs)

        while (condemned := catalog.condemn(self.grace)) != Objects([], []):
            yield condemned, remove(self.chunks.storage, condemned, settle)

    def _delete_steps(self) -> tuple[int, ...]:
        catalog = self.chunks.catalog
        while True:
            current = {commit.id: commit for commit in catalog.commits()}
            wanted = [commit for commit in self.delete if commit.id in current and not current[commit.id].tags]
            try:
                catalog.delete(wanted)
            except (StepNotFound, StepProtected):
                continue  # another gc was faster, or a tag came in between: look again
            return tuple(commit.step for commit in wanted)


class _Going:
    """Counts the packs that go: each once, when it is rewritten or removed, or else at the end."""

    def __init__(self, plan: GcPlan, progress: ProgressCallback | None) -> None:
        self._left: dict[str, int] = {}
        if progress is not None:  # otherwise nobody needs to know
            catalog = plan.chunks.catalog
            names = {*catalog.garbage(plan.grace).packs, *plan.rewrite}
            self._left = {pack.name: pack.size for pack in catalog.packs() if pack.name in names}
        self._advance = meter(progress, "gc", sum(self._left.values()))

    def dealt_with(self, packs: Collection[str]) -> None:
        """These, of which some may be counted already."""
        if known := self._left.keys() & packs:
            self._advance(sum(self._left.pop(pack) for pack in known))

    def over(self) -> None:
        """Whatever is left was another gc's, or is needed again."""
        self.dealt_with(list(self._left))


def plan_gc(
    chunks: ChunkStore,
    run: str,
    keep: Policy | None,
    grace: float,
    progress: ProgressCallback | None = None,
    *,
    sweep: bool = False,
) -> GcPlan:
    """What gc would do. Without a policy nothing is deleted; only what is collectable already goes.

    With `sweep`, storage is listed for what the catalog does not know.

    Raises:
        InvalidArgument: a negative grace.
        GcRefused: the policy keeps nothing, and is not KeepLast(0); or the catalog is older than the storage.
        RunNotFound: no such run.
        StoreTooNew: the store has what this version would not know how to spare.
    """
    catalog = chunks.catalog
    version.check_features(chunks.config.requires_gc, "collect", chunks.storage.url)
    check_terms(keep, grace)
    commits = catalog.commits(run) if keep is not None else []
    kept = kept_by(keep, commits) if keep is not None else {}
    if commits and not kept and keep != KeepLast(0):
        why = keep.doubt(commits) if keep is not None else ""
        problem = f"{keep} keeps none of the {len(commits)} commits of run {run!r}{f' ({why})' if why else ''}"
        raise GcRefused(f"{problem}: to drop all, say KeepLast(0)")
    kept = {commit.id: f"tagged {', '.join(commit.tags)}" for commit in commits if commit.tags} | kept
    condemned = catalog.garbage(grace)
    sizes = {pack.name: pack.size for pack in catalog.packs()}
    freed = sum(sizes.get(pack) or _size(chunks.storage, pack_key(pack)) for pack in condemned.packs)
    delete = tuple(commit for commit in commits if commit.id not in kept)
    found = orphans(chunks) if sweep else Objects()
    rewrite = tuple(wasteful_packs(chunks, progress))
    return GcPlan(chunks, run, delete, kept, condemned, freed, rewrite, found, grace)


def check_share(plan: GcPlan, most: float) -> None:
    """Raises GcRefused when the plan deletes more than this share of the run's commits, unless it is to drop all.

    A policy that was mistyped, or that meets a run for the first time, is noticed before it is executed unseen.
    """
    _check_most(most)
    gone, count = len(plan.delete), len(plan.delete) + len(plan.keep)
    if plan.keep and gone > most * count:
        raise GcRefused(
            f"it would delete {gone} of {count} commits of run {plan.run!r}, more than the share of {most}: "
            "look at the plan first, then execute it or raise most= (--most)"
        )


def _check_most(most: object) -> None:
    if not isinstance(most, int | float) or not 0 <= most <= 1:
        raise InvalidArgument(f"most={most!r}: give a share from 0 to 1")


def check_terms(keep: object, grace: object) -> None:
    """Raises InvalidArgument for what is no policy, or a negative grace."""
    if keep is not None and not isinstance(keep, Policy):
        raise InvalidArgument(f"keep={keep!r}: give a policy, such as KeepLast(3)")
    if not are_seconds(grace) or grace < 0:
        raise InvalidArgument(f"grace={grace!r}: give 0 or more seconds")


def remove(storage: Storage, gone: Objects, settle: Callable[[Objects], None] = lambda _: None) -> int:
    """Delete objects, documents first, so that a rebuild never meets a document without its packs.

    Returns the bytes of the packs, those included that dead writers left. `settle` is given what is done.
    """
    freed = 0
    for key in gone.documents:
        storage.delete(key)
    settle(Objects(documents=gone.documents))
    for batch in batched(gone.packs, 64):
        for pack in batch:
            freed += _size(storage, pack_key(pack))
            storage.delete(pack_key(pack))
        settle(Objects(packs=batch))
    return freed


def _size(storage: Storage, key: str) -> int:
    try:
        return storage.head(key).size
    except ObjectNotFound:
        return 0


def _sweep(storage: Storage) -> int:
    """Remove what killed writers left; how many there were."""
    if not isinstance(storage, Sweeping):
        return 0
    return sum(storage.sweep_temporary(prefix, _UNFINISHED_SECONDS) for prefix in _WRITTEN)


def _check_undamaged(catalog: Catalog, *, rewriting: bool) -> None:
    """A log that was left beside a catalog from a copy is laid over it when that is opened, and SQLite does not notice.

    So an index may hold fewer commits than there are. Looked at once for each that is open.
    """
    known = _SOUND.get(catalog)
    if known or (known is not None and not rewriting):
        return
    for found in catalog.damage(chunks=rewriting):
        raise GcRefused(
            f"the catalog {catalog.url} is damaged ({found}): nothing was collected; move it away, with the "
            "-wal and -shm beside it, which are another one's if it was brought back from a copy, and bring the copy "
            "back again, or make it anew with ckptstore rebuild"
        )
    _SOUND[catalog] = rewriting


def _check_needed_packs(storage: Storage, catalog: Catalog) -> None:
    needed = _needed_packs(catalog)
    missing = needed.keys() - {info.key for info in storage.list(PACKS)}
    if missing:
        missing &= _needed_packs(catalog).keys()  # another gc may have taken some while the storage was listed
    for key in sorted(missing):
        raise GcRefused(
            f"{key}, needed by {needed[key]} commits, is not in {storage.url}: nothing was collected; "
            "run verify, and make sure that catalog and storage belong together"
        )


def _needed_packs(catalog: Catalog) -> dict[str, int]:
    """Storage key → number of commits."""
    return {pack_key(pack.name): pack.needed_by for pack in catalog.packs() if pack.state == "live" and pack.needed_by}
