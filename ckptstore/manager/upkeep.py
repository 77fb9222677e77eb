"""Dropping old steps while training goes on."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable

from ckptstore.locks import Lock
from ckptstore.operations.committing.handles import start_thread


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
