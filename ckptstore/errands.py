"""Work that no signal's handler interrupts, since another thread does it while the caller waits.

Python runs handlers in the main thread, between any two of its instructions: one that raises may leave a lock of
Python's own taken for ever, and one that saves may wait for what the interrupted code was about to do.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1
"""How long a signal that comes just when the main thread begins to wait may go unnoticed."""
_Queue = SimpleQueue[Callable[[], None] | None]
_IDLE: list[Errands] = []


class Errands:
    """A thread, which ends when this is closed or gone."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        self._thread = Thread(target=_serve, args=(self._queue,), name="ckptstore-errands", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._queue.put, None)
        self._end.atexit = False  # until then there may be more to do

    def close(self) -> None:
        """End the thread once it has done all that it was given, and wait for that."""
        self.end()
        self._thread.join()

    def end(self) -> None:
        """The same without waiting, as within what it has to do."""
        self._end()

    def run(self, work: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
        """What `work` gives, in turn. It is done also when the caller is interrupted, who need not wait any more.

        With `give_up`, who is interrupted calls that, and goes on once the work is over, or was not begun.
        """
        left, made, errors = [work], list[T](), list[BaseException]()
        over = Lock()
        over.acquire()

        def done() -> None:
            try:
                made.append(left.pop()())
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach the caller
                errors.append(error)
            over.release()

        try:
            self._queue.put(done)
            while not (made or errors):
                if not over.acquire(timeout=_LOOK_SECONDS) and not self._thread.is_alive() and _taken_back(left):
                    break  # it was closed
        except BaseException:
            if give_up is not None and not _taken_back(left):
                give_up()
                while not (made or errors):
                    with suppress(BaseException):
                        over.acquire()
                made.clear()
                errors.clear()  # which hold what they went through, and that holds them
            raise
        if errors:
            raise errors.pop()
        return made.pop() if made else work()

    def run_if_main(self, work: Callable[[], T], give_up: Callable[[], None] = lambda: None) -> T:
        """`run` for the main thread, the only one that signals interrupt; others do it themselves."""
        is_main = threading.current_thread() is threading.main_thread()
        return self.run(work, give_up) if is_main else work()


def uninterrupted(work: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
    """What `work` gives, done by another thread where this is the main one; `give_up` as for `Errands.run`."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return work()
    errands, over = _an_idle_one(), list[bool]()
    if errands is None:
        return work()

    def done() -> T:
        try:
            return work()
        finally:
            over.append(True)

    try:
        return errands.run(done, give_up)
    finally:
        if over:  # else it may take long yet, and nobody shall wait for that
            _IDLE.append(errands)


def _an_idle_one() -> Errands | None:
    with suppress(IndexError):
        return _IDLE.pop()
    with suppress(RuntimeError):  # no thread begins any more when the interpreter exits
        return Errands()
    return None


def _serve(queue: _Queue) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # and what it holds, until there is more to do


def _taken_back(work: list[Callable[[], T]]) -> bool:
    """Whether nobody has begun it, and nobody will; atomic, where looking before would not be."""
    try:
        work.pop()
    except IndexError:
        return False
    return True


os.register_at_fork(after_in_child=_IDLE.clear)
