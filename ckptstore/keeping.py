"""The part of a store's face that keeps it: freeing, checking, mending."""

from __future__ import annotations

from ckptstore.chunkstore import ChunkStore
from ckptstore.operations import gc, verify
from ckptstore.operations.gc import DEFAULT_GRACE, DEFAULT_MOST, GcPlan, GcReport
from ckptstore.operations.retention import Policy
from ckptstore.operations.verify import VerifyReport
from ckptstore.progress import ProgressCallback, meter


class Keeping:
    """What `Store` inherits."""

    def __init__(self, parts: ChunkStore, run: str) -> None:
        self._parts, self._run = parts, run

    def plan_gc(self, keep: Policy | None = None, *, grace: float = DEFAULT_GRACE, sweep: bool = False) -> GcPlan:
        """What `gc` would do now, and why; `plan.execute()` does it.

        Args:
            keep: which commits of this run to keep, such as `KeepLast(3) | KeepEvery(1000)`. Tagged ones always stay.
                Without a policy only what is collectable already goes: what was deleted, and what crashes left.
            grace: seconds for which a deleted step can be restored, and for which its readers have time to finish.
            sweep: also list the storage for objects that the catalog knows to be gone, or knows nothing of for a day:
                what writers that were late and power cuts leave. Seldom worth its time.

        Raises:
            GcRefused: the policy keeps nothing, as one does that asks for a metric no commit has (`KeepLast(0)` may);
                or, with `sweep`, the catalog is older than the storage.
        """
        return gc.plan_gc(self._parts, self._run, keep, grace, sweep=sweep)

    def gc(
        self,
        keep: Policy | None = None,
        *,
        grace: float = DEFAULT_GRACE,
        sweep: bool = False,
        most: float = DEFAULT_MOST,
    ) -> GcReport:
        """Delete the run's commits that `keep` does not keep, and free what no commit needs. See `plan_gc`.

        Args:
            keep: see `plan_gc`.
            grace: see `plan_gc`.
            sweep: see `plan_gc`.
            most: the largest share of the run's commits that may be deleted at once.

        Raises:
            GcRefused: as for `plan_gc`; more commits than `most` would go; or a pack that a commit needs is missing.
                Nothing was changed.
        """
        plan = self.plan_gc(keep, grace=grace, sweep=sweep)
        gc.check_share(plan, most)
        return plan.execute()

    def verify(self, *, progress: ProgressCallback | None = None) -> VerifyReport:
        """Check the catalog, every manifest and every stored byte. Damage is reported, not raised."""
        total = sum(pack.size for pack in self._parts.catalog.packs() if pack.state == "live")
        return verify.verify(self._parts, meter(progress, "verify", total))
