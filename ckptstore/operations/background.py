"""Commits that go on while training does."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what registers last is called first, see the end of the file
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ckptstore.catalog.base import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.errors import CommitInFlight, InvalidArgument
from ckptstore.operations.history import Draft

if TYPE_CHECKING:  # they import torch, for which nobody waits who only closes a store
    from ckptstore.state.staging import Staged, Stager
    from ckptstore.state.tree import Flat

WhenBusy = Literal["wait", "raise"]
"""What a background commit does while another one is in flight."""

_BUSY = "another background commit is in flight: call its handle's result(), or commit with when_busy='wait'"
_FAST_DIGEST = "xxh3_128"

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


class Background:
    """The background commits of one store: one at a time."""

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self._turn = threading.Lock()
        self._flight: CommitHandle | None = None
        self._staged: Staged | None = None
        self._stager: Stager | None = None

    @contextmanager
    def turn(self, when_busy: WhenBusy) -> Iterator[None]:
        """Alone, and with no commit in flight. Raises CommitInFlight, if asked to, and the error of the last commit."""
        if when_busy not in get_args(WhenBusy):
            raise InvalidArgument(f"when_busy={when_busy!r}: choose one of {', '.join(get_args(WhenBusy))}")
        patient = when_busy == "wait"
        if not self._turn.acquire(blocking=patient):
            raise CommitInFlight(_BUSY)
        try:
            if not patient and self._flight is not None and not self._flight.done():
                raise CommitInFlight(_BUSY)
            self.land()
            yield
        finally:
            self._turn.release()

    def launch(self, flat: Flat, draft: Draft, *, just_in_time: bool) -> CommitHandle:
        """Stage a state and commit it in a thread; in `turn`."""
        staged = self._staged = self._own_stager().stage(flat, just_in_time=just_in_time)
        handle = CommitHandle(flat.nbytes, staged.settle)
        handle.run(lambda: self._commit(staged, draft, handle.advance))
        self._flight = handle
        return handle

    def look(self, flat: Flat) -> Flat:
        """A state to be committed at once, with what is known of tensors on devices; after `land`."""
        return self._own_stager().look(flat)

    def settle(self) -> None:
        """Return once anybody may change the state of the commit in flight."""
        if self._flight is not None:
            self._flight.wait_staged()

    def land(self) -> None:
        """Wait for the commit in flight; raise its error unless somebody saw it."""
        flight, self._flight = self._flight, None
        staged, self._staged = self._staged, None
        try:
            if flight is not None:
                flight.surface()
        finally:
            if staged is not None:
                staged.just_in_time.unhook()

    def close(self) -> None:
        """`land`, and give back the kept memory."""
        try:
            self.land()
        finally:
            if self._stager is not None:
                self._stager.close()
                self._stager = None

    def _commit(self, staged: Staged, draft: Draft, advance: Advance) -> CommitRecord:
        from ckptstore.operations.commit import commit

        try:
            staged.just_in_time.prepare()
            return commit(self._chunks, staged.flat, draft, advance)
        finally:
            staged.just_in_time.close()
            self._own_stager().remember()

    def _own_stager(self) -> Stager:
        from ckptstore.state.staging import Stager

        if self._stager is None:
            digest = self._chunks.digest
            self._stager = Stager(digest.compute if digest.name == _FAST_DIGEST else None)
        return self._stager


def _finish() -> None:
    for thread in list(_THREADS):
        thread.join()


# The interpreter itself waits for threads only after it has closed all thread pools, which a commit still needs.
threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001
