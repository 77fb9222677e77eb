"""Commits on their way in threads, as those see them who asked for them."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what registers last is called first, see the end of the file
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from ckptstore.catalog.base import CommitRecord

_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Progress:
    """Raw bytes looked at so far, and in all."""

    done: int
    total: int


class CommitHandle:
    """A background commit, which holds the state as it was when it was asked for."""

    def __init__(self, total: int, settle: Callable[[], None]) -> None:
        self._future: Future[CommitRecord] = Future()
        self._total, self._done = total, 0
        self._settle = settle
        self._lock = threading.Lock()
        self._seen = False

    def __repr__(self) -> str:
        return f"<commit in the background, {'done' if self.done() else 'being written'}>"

    def wait_staged(self) -> None:
        """Return once anybody may change the state in any way; until then, what optimizers own is theirs alone."""
        self._settle()

    def done(self) -> bool:
        """Whether the commit ended, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> CommitRecord:
        """Wait for the commit's record, at most `timeout` seconds.

        Raises:
            TimeoutError: it is still being written.
            CkptStoreError: why it failed.
        """
        try:
            record = self._future.result(timeout)
        except FutureTimeout:
            if not self._future.done():
                raise TimeoutError(f"the commit is still being written after {timeout} s") from None
            self._seen = True
            raise
        except BaseException:
            self._seen = True
            raise
        self._seen = True
        return record

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self._done, self._total)

    def exception(self) -> BaseException | None:
        """Wait until it ended; why it failed, or None. It is still raised where it would be without this call."""
        return self._future.exception()

    def surface(self) -> None:
        """Wait until it ended; raise its error unless `result` did so already."""
        error = self.exception()
        if error is not None and not self._seen:
            self._seen = True
            raise error

    def advance(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            self._done += count

    def run(self, work: Callable[[], CommitRecord]) -> None:
        """Do the work in a thread. The interpreter waits for it before it exits."""
        start_thread(lambda: self._run(work), "ckptstore-commit")

    def _run(self, work: Callable[[], CommitRecord]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach the caller's thread
            self._future.set_exception(error)
            atexit.register(self._report)

    def _report(self) -> None:
        """Say at exit what nobody asked for."""
        if not self._seen:
            sys.stderr.write(f"ckptstore: a background commit failed: {self._future.exception()!r}\n")


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Do the work in a thread, for which the interpreter waits while there still are thread pools."""
    thread = threading.Thread(target=work, name=name)
    _THREADS.add(thread)
    thread.start()
    return thread


def _finish() -> None:
    for thread in list(_THREADS):
        thread.join()


# The interpreter itself waits for threads only after it has closed all thread pools, which a commit still needs.
threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001
