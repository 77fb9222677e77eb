"""The part of a store's face that tells what is there: commits, runs, tags, leaves, and what changed."""

from __future__ import annotations

from typing import NoReturn

from ckptstore.catalog.records import LATEST, CatalogStats, CommitRecord, RunRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import InvalidArgument
from ckptstore.operations import address, history
from ckptstore.operations.address import Ref
from ckptstore.operations.diff import Diff, compare_commits
from ckptstore.operations.view import ManifestView, view_of
from ckptstore.progress import ProgressCallback


class Browsing:
    """What `Store` inherits."""

    def __init__(self, parts: ChunkStore, run: str) -> None:
        self._parts, self._run = parts, run

    def __reduce__(self) -> NoReturn:
        place = self._parts.storage.url
        raise InvalidArgument(f"the open store {place} cannot be pickled or copied: open it where it is needed")

    def manifest(self, step: Ref = LATEST) -> ManifestView:
        """Logical path → entry of every leaf of a commit; also knows its containers and ties. Reads no data."""
        return view_of(self._parts, self._find(step))

    def steps(self) -> list[int]:
        """Steps of the run, ascending."""
        return self._parts.catalog.steps(self._run)

    def latest(self) -> int | None:
        """The run's highest step, or None."""
        newest = self._parts.catalog.newest(self._run, address.MOST_STEP)
        return None if newest is None else newest.step

    def log(self, *, deleted: bool = False) -> list[CommitRecord]:
        """Commits of the run, newest step first; with `deleted`, also those that can still be restored."""
        return history.log(self._parts.catalog, self._run, deleted=deleted)

    def find(self, step: Ref = LATEST) -> CommitRecord:
        """The record of a commit. Raises StepNotFound, RunNotFound, TagNotFound."""
        return self._find(step)

    def runs(self) -> list[RunRecord]:
        """Every run of the store, by name."""
        return self._parts.catalog.runs()

    def tags(self) -> dict[str, int]:
        """Tags of the run and their steps."""
        return {tag.name: tag.step for tag in self._parts.catalog.tags(self._run)}

    def stats(self) -> CatalogStats:
        """Counts over the whole store: of runs, commits, packs and chunks, and of bytes as committed and as stored."""
        return self._parts.catalog.stats()

    def diff(
        self,
        old: Ref,
        new: Ref,
        *,
        values: bool = False,
        memory_budget_bytes: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Diff:
        """What changed from one commit to another: leaves added, removed, moved and changed, with changed bytes.

        Bytes are compared by chunk digests, without reading data. With `values`, changed tensors are read, by chunks
        within the budget (see `checkout`), and their numeric change is computed in float64.

        Raises StepNotFound, RunNotFound or TagNotFound when there is no such commit; with `values` also CorruptData for
        damaged bytes, and BudgetTooSmall when one chunk of each does not fit into the given budget.
        """
        diff = compare_commits(self.manifest(old), self.manifest(new), self._parts.digest.size)
        if not values:
            return diff
        from ckptstore.operations.numbers import with_numbers

        return with_numbers(self._parts, diff, memory_budget_bytes, progress)

    def _find(self, ref: Ref) -> CommitRecord:
        return address.resolve(self._parts.catalog, self._run, ref)
