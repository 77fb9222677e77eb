"""Dropping old steps: plan, show, execute.

A policy marks commits of one run deleted; they can be restored until `grace` seconds have passed, and who reads one
has that long to finish. Then they are purged: what no other commit needs is condemned under the catalog's lock and
only after that removed from storage, so every step can be repeated after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from ckptstore.catalog.records import CommitRecord, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import GcRefused, SessionFenced, StepNotFound, StepProtected, StorageFull
from ckptstore.format import version
from ckptstore.operations.collecting.checks import check_needed_packs, check_undamaged
from ckptstore.operations.collecting.removal import Going, collect, pack_size, remove, sweep_unfinished
from ckptstore.operations.collecting.retention import KeepLast, Policy, kept_by
from ckptstore.operations.collecting.terms import check_most, check_terms
from ckptstore.operations.orphans import check_not_older, orphans
from ckptstore.operations.rewrite import rewrite_packs, wasteful_packs
from ckptstore.operations.tags import store_missing
from ckptstore.progress import ProgressCallback, check_callback


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
        check_undamaged(catalog, rewriting=bool(self.rewrite))
        check_needed_packs(storage, catalog)
        fenced = catalog.fence_expired()
        if self.delete or self.rewrite or catalog.garbage(self.grace) != Objects([], []):
            check_not_older(self.chunks)
        steps = self._delete_steps()
        going = Going(self.chunks, self.grace, self.rewrite, progress)
        gone = list(collect(self.chunks, self.grace, going))
        rewritten, written = rewrite_packs(self.chunks, self.rewrite, going.dealt_with)
        if rewritten:
            gone += collect(self.chunks, self.grace, going)
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
            unfinished=sweep_unfinished(storage),
        )

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
    freed = sum(sizes.get(pack) or pack_size(chunks.storage, pack) for pack in condemned.packs)
    delete = tuple(commit for commit in commits if commit.id not in kept)
    found = orphans(chunks) if sweep else Objects()
    rewrite = tuple(wasteful_packs(chunks, progress))
    return GcPlan(chunks, run, delete, kept, condemned, freed, rewrite, found, grace)


def check_share(plan: GcPlan, most: float) -> None:
    """Raises GcRefused when the plan deletes more than this share of the run's commits, unless it is to drop all.

    A policy that was mistyped, or that meets a run for the first time, is noticed before it is executed unseen.
    """
    check_most(most)
    gone, count = len(plan.delete), len(plan.delete) + len(plan.keep)
    if plan.keep and gone > most * count:
        raise GcRefused(
            f"it would delete {gone} of {count} commits of run {plan.run!r}, more than the share of {most}: "
            "look at the plan first, then execute it or raise most= (--most)"
        )
