"""Dropping old steps: plan, show, execute.

A policy marks commits of one run deleted; they can be restored until `grace` seconds have passed, and who reads one
has that long to finish. Then they are purged: what no other commit needs is condemned under the catalog's lock and
only after that removed from storage, so every step can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.catalog.base import Catalog, CommitRecord, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import GcRefused, InvalidArgument, ObjectNotFound, StepNotFound, StepProtected
from ckptstore.format import version
from ckptstore.format.packs import pack_key
from ckptstore.operations.retention import KeepLast, Policy
from ckptstore.storage.base import Storage, Sweeping

DEFAULT_GRACE = 900.0
"""Seconds for which a deleted step can be restored."""

_UNFINISHED_SECONDS = 3600.0
"""How long nobody must have written to an unfinished file; a slow disk may need minutes to flush one."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a gc did.

    Attributes:
        deleted: steps of the run that the policy marked deleted.
        purged: manifest documents removed from storage.
        packs: packs removed from storage.
        freed_bytes: their size.
        fenced: writers whose lease had run out.
        unfinished: files removed that killed writers had begun.
    """

    deleted: tuple[int, ...]
    purged: int
    packs: int
    freed_bytes: int
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
        grace: seconds a deleted step can be restored.
    """

    storage: Storage = field(repr=False)
    catalog: Catalog = field(repr=False)
    run: str
    delete: tuple[CommitRecord, ...]
    keep: dict[str, str]
    condemned: Objects
    freed_bytes: int
    grace: float

    def execute(self) -> GcReport:
        """Do it. Commits that were tagged since the plan was made stay.

        Raises:
            GcRefused: a pack that a commit needs is missing from storage; nothing was changed.
        """
        _check_needed_packs(self.storage, self.catalog)
        steps = self._delete_steps()
        fenced = self.catalog.fence_expired()
        condemned = self.catalog.condemn(self.grace)
        freed = remove(self.storage, self.catalog, condemned)
        unfinished = self.storage.sweep_temporary(_UNFINISHED_SECONDS) if isinstance(self.storage, Sweeping) else 0
        return GcReport(steps, len(condemned.documents), len(condemned.packs), freed, fenced, unfinished)

    def _delete_steps(self) -> tuple[int, ...]:
        while True:
            current = {commit.id: commit for commit in self.catalog.commits()}
            wanted = [commit for commit in self.delete if commit.id in current and not current[commit.id].tags]
            try:
                self.catalog.delete(wanted)
            except (StepNotFound, StepProtected):
                continue  # another gc was faster, or a tag came in between: look again
            return tuple(commit.step for commit in wanted)


def plan_gc(chunks: ChunkStore, run: str, keep: Policy | None, grace: float) -> GcPlan:
    """What gc would do. Without a policy nothing is deleted; only what is collectable already goes.

    Raises:
        InvalidArgument: a negative grace.
        GcRefused: the policy keeps nothing, and is not KeepLast(0).
        RunNotFound: no such run.
        StoreTooNew: the store has what this version would not know how to spare.
    """
    storage, catalog = chunks.storage, chunks.catalog
    version.check_features(chunks.config.requires_gc, "collect", storage.url)
    if keep is not None and not isinstance(keep, Policy):
        raise InvalidArgument(f"keep={keep!r}: give a policy, such as KeepLast(3)")
    _check_grace(grace)
    commits = catalog.commits(run) if keep is not None else []
    kept = keep.keep(commits) if keep is not None else {}
    if commits and not kept and keep != KeepLast(0):
        raise GcRefused(f"{keep} keeps none of the {len(commits)} commits of run {run!r}: to drop all, say KeepLast(0)")
    kept = {commit.id: f"tagged {', '.join(commit.tags)}" for commit in commits if commit.tags} | kept
    condemned = catalog.garbage(grace)
    sizes = {pack.name: pack.size for pack in catalog.packs()}
    freed = sum(sizes.get(pack, 0) for pack in condemned.packs)
    delete = tuple(commit for commit in commits if commit.id not in kept)
    return GcPlan(storage, catalog, run, delete, kept, condemned, freed, grace)


def _check_grace(grace: object) -> None:
    if not isinstance(grace, int | float) or not grace >= 0:
        raise InvalidArgument(f"grace={grace!r}: give 0 or more seconds")


def remove(storage: Storage, catalog: Catalog, condemned: Objects) -> int:
    """Delete what is condemned, documents first, so that a rebuild never meets a document without its packs.

    Returns the bytes of the packs, those included that dead writers left.
    """
    freed = 0
    for key in condemned.documents:
        storage.delete(key)
    catalog.settle(Objects(documents=condemned.documents))
    for batch in _batched(condemned.packs, 64):
        for pack in batch:
            freed += _size(storage, pack_key(pack))
            storage.delete(pack_key(pack))
        catalog.settle(Objects(packs=batch))
    return freed


def _size(storage: Storage, key: str) -> int:
    try:
        return storage.head(key).size
    except ObjectNotFound:
        return 0


def _batched(items: Sequence[str], size: int) -> list[Sequence[str]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def _check_needed_packs(storage: Storage, catalog: Catalog) -> None:
    needed = _needed_packs(catalog)
    missing = needed.keys() - {info.key for info in storage.list("packs/")}
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
