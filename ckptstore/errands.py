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


def uninterrupted(work: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
    """What `work` gives, done by another thread where this is the main one, the only one that signals interrupt.

    It is done also when the caller is interrupted, who need not wait any more. With `give_up`, who is interrupted calls
    that, and goes on once the work is over, or was not begun.
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return work()
    errands = _an_idle_one()
    return work() if errands is None else errands.run(work, give_up)


class Errands:
    """A thread that is used again, and ends when this is gone."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        Thread(target=_serve, args=(self._queue,), name="ckptstore-errands", daemon=True).start()
        weakref.finalize(self, self._queue.put, None).atexit = False  # until then there may be more to do

    def run(self, work: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
        """See `uninterrupted`. It is idle again when the work is over."""
        left, made, errors = [work], list[T](), list[BaseException]()
        over = Lock()
        over.acquire()

        def done() -> None:
            try:
                made.append(left.pop()())
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach the caller
                errors.append(error)
            _IDLE.append(self)
            over.release()

        try:
            self._queue.put(done)
            while not (made or errors):
                over.acquire(timeout=_LOOK_SECONDS)
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
        return made.pop()


_IDLE: list[Errands] = []


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
