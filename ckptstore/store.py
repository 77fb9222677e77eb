"""The face of a store. Every method is a thin call of one operation.

Operations that touch live state are imported when called: they import torch, which takes seconds, and
`ckptstore log` must not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ckptstore.chunkstore import DEFAULT_BUDGET, ChunkStore
from ckptstore.errors import StorageReadOnly
from ckptstore.operations import address, gc, history, verify
from ckptstore.operations.address import LATEST, Ref
from ckptstore.operations.gc import DEFAULT_GRACE, GcPlan, GcReport
from ckptstore.operations.history import Stats
from ckptstore.operations.retention import Policy
from ckptstore.operations.verify import VerifyReport
from ckptstore.opening import open_parts
from ckptstore.progress import ProgressCallback, meter

if TYPE_CHECKING:
    from ckptstore.catalog.base import CommitRecord, RunRecord
    from ckptstore.format.manifest import Entry, Manifest
    from ckptstore.operations.background import CommitHandle
    from ckptstore.operations.diff import Diff
    from ckptstore.operations.view import ManifestView

DEFAULT_RUN = "main"


class Store:
    """A store, seen from one of its runs. Made by `ckptstore.open`.

    A commit is named by its step, a tag, "latest", any of these behind `run@` for another run, or the record itself.
    Every method may raise CatalogError and StorageError when database or storage fail; nothing is half-made then.
    May be used from several threads. Use as a context manager, or call `close`.
    """

    def __init__(self, parts: ChunkStore, run: str, *, read_only: bool = False) -> None:
        self._parts, self._run, self._read_only = parts, run, read_only
        self._flight: CommitHandle | None = None

    @property
    def url(self) -> str:
        """Where the store lies."""
        return self._parts.storage.url

    @property
    def run(self) -> str:
        """The run that steps without `run@` belong to."""
        return self._run

    # commits

    def commit(
        self,
        app_state: Mapping[str, Any],
        *,
        step: int,
        metadata: Mapping[str, Any] | None = None,
        parent: Ref | None = None,
        run: str | None = None,
        allow_pickle: bool = False,
        progress: ProgressCallback | None = None,
    ) -> CommitRecord:
        """Store a state as one immutable step; only bytes that the store does not hold yet are written.

        Args:
            app_state: name → object with `state_dict` and `load_state_dict`, or nested plain state with tensors.
            step: 0 to 2**63 - 1, unique in the run.
            metadata: JSON, such as {"loss": 2.3}; shown by `log`, used by `KeepBest`.
            parent: the commit this one continues; by default the run's highest step below this one. The first
                commit of a run forks it from the parent's run.
            run: another run than the store's own; made if new.
            allow_pickle: store leaves of unknown types as pickles.
            progress: called with (stage, bytes done, bytes in all).

        Returns:
            The commit's record. It is durable: a crash after the return loses nothing, one before changes nothing.

        Raises:
            UnsupportedLeaf: a leaf has no encoding; names its path.
            StepExists: the step holds another state. The same state again is success.
            InvalidArgument: a bad step, run, parent or metadata.
        """
        from ckptstore.operations.commit import commit
        from ckptstore.state.tree import flatten

        self._wait_for_flight()
        draft = self._draft(step, metadata, parent, run)
        flat = flatten(app_state, allow_pickle=allow_pickle)
        return commit(self._parts, flat, draft, meter(progress, "commit", flat.nbytes))

    def commit_async(
        self,
        app_state: Mapping[str, Any],
        *,
        step: int,
        metadata: Mapping[str, Any] | None = None,
        parent: Ref | None = None,
        run: str | None = None,
        allow_pickle: bool = False,
        progress: ProgressCallback | None = None,
    ) -> CommitHandle:
        """Copy the state, return, and commit the copy in the background. Arguments as for `commit`.

        When this returns the state is staged: training may change it. One commit is in flight at a time; the next
        one waits for it. An error of the background commit is raised by the handle's `result`, or else by the
        store's next commit or `close`.
        """
        from ckptstore.operations.background import start
        from ckptstore.state.staging import stage
        from ckptstore.state.tree import flatten

        self._wait_for_flight()
        draft = self._draft(step, metadata, parent, run)
        flat = stage(flatten(app_state, allow_pickle=allow_pickle))
        self._flight = start(self._parts, flat, draft, progress)
        return self._flight

    def _draft(self, step: int, metadata: Mapping[str, Any] | None, parent: Ref | None, run: str | None) -> Draft:
        if self._read_only:
            raise StorageReadOnly(f"{self.url} was opened read-only: open it without read_only=True to commit")
        name = self._run if run is None else address.check_name("run", run)
        return history.draft(self._parts, name, step, parent, metadata)

    def _wait_for_flight(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.surface()
