"""The part of a store's face that keeps it: freeing, checking, mending, copying into others."""

from __future__ import annotations

from typing import Self

from ckptstore.browsing import Browsing
from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import InvalidArgument
from ckptstore.operations import address, push, tags
from ckptstore.operations.address import Ref
from ckptstore.operations.collecting import gc
from ckptstore.operations.collecting.gc import GcPlan, GcReport
from ckptstore.operations.collecting.retention import Policy
from ckptstore.operations.collecting.terms import DEFAULT_GRACE, DEFAULT_MOST
from ckptstore.operations.mending import repair
from ckptstore.operations.mending.repair import RepairPlan, RepairReport
from ckptstore.operations.verifying import verify
from ckptstore.operations.verifying.verify import Level, Scope, VerifyReport
from ckptstore.progress import ProgressCallback


class Keeping(Browsing):
    """What `Store` inherits, and what it inherits itself."""

    def tag(self, name: str, step: Ref) -> None:
        """Give a commit a name in its run, taking the name from another. Tagged commits are never collected.

        It is in storage as well, for reading without the catalog and for rebuilding it. Raises StepNotFound.
        """
        tags.tag(self._parts, address.check_name("tag", name), self._find(step))

    def untag(self, name: str) -> None:
        """Remove a tag of the run. Raises TagNotFound, RunNotFound."""
        tags.untag(self._parts, self._run, address.check_name("tag", name))

    def delete(self, step: Ref, *more: Ref) -> None:
        """Delete commits, all of them or none. `restore` takes each back until gc's grace is over.

        Raises StepProtected when one is tagged; StepNotFound, RunNotFound or TagNotFound when there is no such commit.
        """
        gone = {commit.id: commit for commit in map(self._find, (step, *more))}
        self._parts.catalog.delete([*gone.values()])

    def restore(self, step: int) -> CommitRecord:
        """Take back the last deletion of a step of the run.

        Raises StepNotFound when nothing is left of it, StepExists when the step was made anew, RunNotFound.
        """
        return self._parts.catalog.restore(self._run, address.check_step(step))

    def plan_gc(
        self,
        keep: Policy | None = None,
        *,
        grace: float = DEFAULT_GRACE,
        sweep: bool = False,
        progress: ProgressCallback | None = None,
    ) -> GcPlan:
        """What `gc` would do now, and why; `plan.execute()` does it.

        Args:
            keep: which commits of this run to keep, such as `KeepLast(3) | KeepEvery(1000)`. Tagged ones always stay.
                Without a policy only what is collectable already goes: what was deleted, and what crashes left.
            grace: seconds for which a deleted step can be restored, and for which its readers have time to finish.
            sweep: also list the storage for objects that the catalog knows to be gone, or has known nothing of for a
                day: what late writers and power cuts leave behind. Seldom worth its time.
            progress: called with (stage, bytes done, bytes in all), of the packs that may be worth rewriting.

        Raises:
            GcRefused: the policy keeps nothing, as one does that asks for a metric no commit has (`KeepLast(0)` may);
                or, with `sweep`, the catalog is older than the storage.
            InvalidArgument: a negative grace, or a `keep` that is no policy.
            RunNotFound: there is no such run.
            StoreTooNew: the store has what this version would not know how to spare.
        """
        return gc.plan_gc(self._parts, self._run, keep, grace, progress, sweep=sweep)

    def gc(
        self,
        keep: Policy | None = None,
        *,
        grace: float = DEFAULT_GRACE,
        sweep: bool = False,
        most: float = DEFAULT_MOST,
        progress: ProgressCallback | None = None,
    ) -> GcReport:
        """Delete the run's commits that `keep` does not keep, and free what no commit needs. See `plan_gc`.

        Args:
            keep: see `plan_gc`.
            grace: see `plan_gc`.
            sweep: see `plan_gc`.
            most: the largest share of the run's commits that may be deleted at once.
            progress: called with (stage, bytes done, bytes in all), of the plan and then of the packs that go.

        Raises:
            GcRefused: as for `plan_gc`; more commits than `most` would go; a pack that a commit needs is missing; or
                the catalog is damaged, or older than the storage. Nothing was deleted or removed.
        """
        plan = self.plan_gc(keep, grace=grace, sweep=sweep, progress=progress)
        gc.check_share(plan, most)
        return plan.execute(progress)

    def verify(
        self,
        level: Level = "data",
        *,
        subset: tuple[int, int] | None = None,
        older_than: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> VerifyReport:
        """Check that what is stored is what was written. Damage is reported, not raised.

        Args:
            level: `catalog`: the database, its manifests, and that gc spares for each commit the packs of its chunks;
                `sizes`: also that every object is there and as long as it was, that the catalog knows every whole
                commit, and that the wrapped key of an encrypted store, without which nobody could open it again, is
                whole; `footers`: also what objects say of themselves; `data`: also every byte.
            subset: (k, n), as (3, 20): only the k-th of n equal parts of the packs, always the same ones. Manifests are
                checked all.
            older_than: only packs of which no byte was read by a verification for so many seconds; so an interrupted
                verification goes on where it was, and a nightly one comes around.
            progress: called with (stage, bytes done, bytes in all).

        Raises:
            InvalidArgument: no such level, subset or age.
            StorageError: something cannot be read now; that is no damage, and `older_than` goes on where this ended.
            NotAStore: the store was moved away while it was open.
        """
        return verify.verify(self._parts, Scope(level, subset, older_than), progress)

    def plan_repair(self, source: Self | None = None, *, progress: ProgressCallback | None = None) -> RepairPlan:
        """What `repair` would do now, after verifying every byte; `plan.execute()` does it.

        Args:
            source: another store that may have good copies of chunks and manifests, such as a backup.
            progress: called with (stage, bytes done, bytes in all).

        Raises:
            InvalidArgument: the source is no open store, or has another digest; or one of the two is encrypted, and the
                source is no copy of this one.
            StorageError: a pack cannot be read now; that is no damage.
            NotAStore: the store was moved away while it was open.
        """
        if not isinstance(source, Keeping | None):
            raise InvalidArgument(f"repair from {source!r}: give an open store, as ckptstore.open gives it")
        other = None if source is None else source._parts  # noqa: SLF001 - of the same kind
        return repair.plan_repair(self._parts, other, progress)

    def repair(self, source: Self | None = None, *, progress: ProgressCallback | None = None) -> RepairReport:
        """Mend what can be mended. See `plan_repair`.

        Damaged packs are retired: what is whole in them, or lies elsewhere, is stored anew, as is what rests on them
        and can be read all the same. Nothing else is found in them any more, so that the next commit of the same chunks
        heals what is still lost. They stay in storage as long as anything is lost. Manifest documents are mended from
        the catalog, and the catalog's from them; documents of tags are stored anew, and so is the wrapped key of an
        encrypted store, for the passphrase that this process opened it with.
        """
        return self.plan_repair(source, progress=progress).execute(progress)

    def push(
        self, target: Self, *steps: Ref, run: str | None = None, progress: ProgressCallback | None = None
    ) -> list[CommitRecord]:
        """Copy commits into another store, which stores only the chunks that it lacks; tags stay here.

        A copy has the step, metadata, time and content of its commit, and its parent if the target has that. Copies are
        made one after the other, none before its parent, each whole or not at all: when that is interrupted, or one
        fails, those that were made stay, and pushing again goes on from there. To leave one out, name the others.
        A commit that is deleted here meanwhile may be left out; if it was named, that is an error.

        Args:
            target: an open store. Its digest, compression and encryption may be others; chunks keep their sizes.
            steps: the commits; by default all of this run.
            run: the target's run for all of them, made if new. By default that of the same name, whatever run the
                target was opened with.
            progress: called with (stage, bytes done, bytes in all); what the target has counts at once.

        Returns:
            The commits that the target did not have, as it has them now.

        Raises:
            RunNotFound, StepNotFound, TagNotFound: this store has no such run, step or tag.
            StepExists: the target has another state at that step, or the same one cut into other chunks.
            InvalidArgument: the target is no open store, or the commit would go to where it is.
            CorruptData: stored bytes of this store are damaged; names the commit and the path.
            StorageError, CatalogError: one of the stores cannot be read or written.
        """
        if not isinstance(target, Keeping):
            raise InvalidArgument(f"push to {target!r}: give an open store, as ckptstore.open gives it")
        name = None if run is None else address.check_name("run", run)
        commits = [*map(self._find, steps)] if steps else self._parts.catalog.commits(self._run)
        return push.push(self._parts, target._parts, commits, name, progress, named=bool(steps))
