"""Dropping old steps while training goes on."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Collection, Sequence

from ckptstore.catalog.records import CommitRecord
from ckptstore.locks import Lock
from ckptstore.operations.collecting.retention import Policy
from ckptstore.operations.committing.handles import start_thread


class Newest(Policy):
    """Keeps the highest step, and what was saved last: other ones where training goes on from an older step.

    Args:
        saved: the steps that were saved last.
    """

    def __init__(self, saved: Collection[int]) -> None:
        self._saved = saved

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """All of these."""
        last = [commit for commit in commits if commit.step in self._saved]
        return {commit.id: "the newest" for commit in [*commits[-1:], *last]}

    def doubt(self, commits: Sequence[CommitRecord]) -> str:
        """There are higher steps than those: whoever resumes finds what was made before training went back."""
        highest = commits[-1].step if commits else 0
        if highest <= max(self._saved, default=highest):
            return ""
        return (
            f"its steps up to {highest} are older than what is saved now, but latest_step() gives that one, "
            "and KeepLast counts from there: delete the steps from which you went back, or fork a run"
        )


class Upkeep:
    """Collects after commits, one collection at a time, in a thread of its own."""

    def __init__(self, collect: Callable[[], object]) -> None:
        self._collect = collect
        self._lock = Lock()
        self._next: Callable[[], bool] | None = None
        self._runs = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def after(self, durable: Callable[[], bool]) -> None:
        """Collect once `durable` has returned, if it says so. What is asked for meanwhile is done together."""
        with self._lock:
            self._next = durable
            if self._runs:  # as for a signal's handler that comes while the thread is begun
                return
            self._runs = True
            try:
                self._thread = start_thread(self._run, "ckptstore-upkeep")
            except BaseException:
                self._runs = False
                raise

    def surface(self) -> None:
        """Raise what went wrong, once."""
        error, self._error = self._error, None
        if error is not None:
            atexit.unregister(self._report)
            raise error

    def join(self) -> None:
        """Wait until nothing is left to do, and `surface`."""
        thread = self._thread
        if thread is not None:
            thread.join()
        self.surface()

    def _run(self) -> None:
        while (durable := self._take()) is not None:
            try:
                if durable():
                    self._collect()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the caller's thread
                self._error = error
                atexit.register(self._report)

    def _take(self) -> Callable[[], bool] | None:
        with self._lock:
            durable, self._next = self._next, None
            self._runs = durable is not None
            return durable

    def _report(self) -> None:
        """Say at exit what nobody asked for."""
        if self._error is not None:
            sys.stderr.write(f"ckptstore: dropping old steps failed: {self._error!r}\n")
