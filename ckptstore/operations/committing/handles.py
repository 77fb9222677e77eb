"""Commits on their way in threads, as those see them who asked for them."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - what registers last is called first, see the end of the file
import math
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, NoReturn

from ckptstore.catalog.records import CommitRecord
from ckptstore.errands import uninterrupted
from ckptstore.errors import InterpreterExiting, InvalidArgument, StateError
from ckptstore.locks import Lock
from ckptstore.pools import start

_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_UNREPORTED: dict[object, str] = {}
"""Of commits that failed, until somebody sees their errors."""
_EXITING = threading.Event()
_BEGINNING = Lock()
"""So that a thread has begun before the interpreter looks for which ones it waits, or is refused."""
_LATEST = 0.1
"""Seconds after which a thread begins, also if who started it was interrupted by a signal's handler that raised."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Raw bytes looked at so far, and in all."""

    done: int
    total: int


class CommitHandle:
    """A background commit, which holds the state as it was when it was asked for."""

    def __init__(self, total: int, settle: Callable[[], None]) -> None:
        self._total, self._done = total, 0
        self._settle: Callable[[], None] | None = settle
        self._lock = Lock()
        self._home = os.getpid()
        self._waiting: list[threading.Lock] = []
        self._work: list[Callable[[], CommitRecord]] = []
        self._token = object()
        self._record: CommitRecord | None = None
        self._error: BaseException | None = None
        self._over = True  # until there is work to do

    def __repr__(self) -> str:
        return f"<commit in the background, {'done' if self.done() else 'being written'}>"

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument("a commit in the background cannot be pickled or copied: take its result()")

    def wait_staged(self) -> None:
        """Return once anybody may change the state in any way; until then, what optimizers own is theirs alone."""
        settle = self._settle
        if settle is not None:
            settle()

    def done(self) -> bool:
        """Whether the commit has ended, successfully or not."""
        return self._over

    def result(self, timeout: float | None = None) -> CommitRecord:
        """Wait for the commit's record, at most `timeout` seconds.

        Raises:
            TimeoutError: it is still being written.
            InvalidArgument: no number of seconds.
            StateError: this process is a fork of the one that commits.
            CkptStoreError: why it failed.
        """
        self._wait(-1 if timeout is None else _seconds(timeout))
        if timeout is not None and not self._over:
            raise TimeoutError(f"the commit is still being written after {timeout} s")
        _UNREPORTED.pop(self._token, None)
        if self._error is not None:
            raise self._error
        if self._record is None:
            raise StateError("the commit was given up when the call that began it was interrupted: commit again")
        return self._record

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self._done, self._total)

    def exception(self) -> BaseException | None:
        """Wait until it has ended; its error, or None. The error is still raised where it would be without this call.

        Raises StateError in a fork of the process that commits.
        """
        self._wait()
        return self._error

    def surface(self) -> None:
        """Wait until it ended; raise its error unless `result` did so already. In a fork, that is for its parent."""
        if self._is_elsewhere():
            return
        error = self.exception()
        if error is not None and _UNREPORTED.pop(self._token, None) is not None:
            raise error

    def advance(self, count: int) -> None:
        """Count bytes."""
        with self._lock:
            self._done += count

    def run(self, work: Callable[[], CommitRecord]) -> None:
        """Do the work in a thread. The interpreter waits for it before it exits.

        When this is interrupted, the work is done all the same, or `done` says at once that it never will.
        """
        self._work.append(work)
        self._over = False
        try:
            start_thread(self._run, "ckptstore-commit")
        except BaseException:
            self._over = self._claimed() is not None
            raise

    def _run(self) -> None:
        work = self._claimed()
        if work is None:
            return
        try:
            self._record = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach the caller's thread
            _UNREPORTED[self._token] = repr(error)
            self._error = error
            forget_locals(error)
        self._settle = None
        del work  # and the state with it, before anybody is woken
        self._over = True
        for waiting in self._waiting:
            waiting.release()

    def _claimed(self) -> Callable[[], CommitRecord] | None:
        """The work, to do it or to give it up, at the first call; atomic, where looking before would not be."""
        try:
            return self._work.pop()
        except IndexError:
            return None

    def _is_elsewhere(self) -> bool:
        return not self._over and os.getpid() != self._home

    def _wait(self, timeout: float = -1) -> None:
        """Each caller has a lock of its own: where a signal's handler raises, nobody else finds one taken."""
        if self._over:
            return
        if self._is_elsewhere():
            raise StateError("the commit goes on in the process of which this one is a fork: ask there")
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)
        if not self._over:  # else it may not be released any more
            mine.acquire(timeout=timeout)


def _seconds(timeout: object) -> float:
    number: Any = timeout if isinstance(timeout, Real) else math.nan
    if not -math.inf <= number <= math.inf:
        raise InvalidArgument(f"timeout={timeout!r}: give seconds, or None")
    return float(min(max(number, 0), threading.TIMEOUT_MAX))


def forget_locals(error: BaseException) -> None:
    """Of the functions that it went through, which hold the state."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Do the work in a thread, for which the interpreter waits while there still are thread pools.

    It begins once this has returned: it would keep Python's lock for 5 ms, for which the caller would wait in here.

    Raises InterpreterExiting when the interpreter does not wait any more, and what keeps a thread from beginning.
    """
    returning = threading.Lock()
    returning.acquire()

    def begin() -> None:
        returning.acquire(timeout=_LATEST)
        work()

    thread = threading.Thread(target=begin, name=name)
    uninterrupted(partial(_start, thread))
    returning.release()
    return thread


def _start(thread: threading.Thread) -> None:
    with _BEGINNING:
        refuse_at_exit()
        start(thread)
        _THREADS.add(thread)


def refuse_at_exit() -> None:
    """Raises InterpreterExiting once no thread can be begun any more."""
    if _EXITING.is_set():
        raise InterpreterExiting("the interpreter exits, and begins no threads any more: commit before its last line")


def _begin_no_more() -> None:
    with _BEGINNING:
        _EXITING.set()


def _finish() -> None:
    """Wait for all that is in flight, and say what nobody asked for."""
    uninterrupted(_begin_no_more)
    for thread in list(_THREADS):
        if thread.is_alive():
            thread.join()
    for error in _UNREPORTED.values():
        sys.stderr.write(f"ckptstore: a background commit failed: {error}\n")


os.register_at_fork(after_in_child=_UNREPORTED.clear)  # the parent reports them

# The interpreter itself waits for threads only after it has closed all thread pools, which a commit still needs.
threading._register_atexit(_finish)  # type: ignore[attr-defined]  # noqa: SLF001
