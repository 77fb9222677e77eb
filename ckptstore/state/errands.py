"""Work that no signal's handler interrupts, since another thread does it while the caller waits.

Python runs handlers in the main thread, between any two of its instructions: one that raises may leave a lock of
Python's own taken for ever, and one that saves may wait for what the interrupted code was about to do.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

_Queue = SimpleQueue[Callable[[], None] | None]


class Errands:
    """A thread, which ends when this is closed or gone."""

    def __init__(self) -> None:
        self._queue: _Queue = SimpleQueue()
        self._thread = Thread(target=_serve, args=(self._queue,), name="ckptstore-errands", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._queue.put, None)

    def close(self) -> None:
        """End the thread once it has done all that it was given."""
        self._end()
        self._thread.join()

    def run(self, work: Callable[[], None]) -> None:
        """Return once `work` is done, in turn; raise what it raises. It is done also when the caller is interrupted."""
        over, errors = Lock(), list[BaseException]()
        over.acquire()

        def done() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it must reach the caller
                errors.append(error)
            over.release()

        self._queue.put(done)
        over.acquire()
        if errors:
            raise errors[0]


def _serve(queue: _Queue) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # and what it holds, until there is more to do
