"""SQLite keeps in its process who holds which lock: a child that was forked off meanwhile would wait for nobody.

So a fork waits for the transactions of other threads, and finds no connection open; SQLite's own advice is to carry
none across (https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ckptstore.locks import Lock

_PATIENCE_SECONDS = 10.0
"""How long a fork waits; longer ones are those that wait for another process's lock, and hold none."""


class Closable(Protocol):
    """What has connections, and opens them again when it is used."""

    def close(self) -> None:
        """Close those that are idle."""


_LOCK = Lock()  # left in C, where no signal's handler interrupts, as it may a Condition
_TURN = threading.Condition(_LOCK)
_OPEN: weakref.WeakSet[Closable] = weakref.WeakSet()
_BUSY: dict[int, int] = {}
"""Thread → how many transactions it is in."""


def close_before_fork(database: Closable) -> None:
    """From now on."""
    with _LOCK:
        _OPEN.add(database)


@contextmanager
def unforked() -> Iterator[None]:
    """No other thread forks meanwhile."""
    me = threading.get_ident()
    with _LOCK:
        _BUSY[me] = _BUSY.get(me, 0) + 1
    try:
        yield
    finally:
        with _LOCK:
            _BUSY[me] -= 1
            if not _BUSY[me]:
                del _BUSY[me]
                _TURN.notify_all()


def _before() -> None:
    _TURN.acquire()
    end = time.monotonic() + _PATIENCE_SECONDS
    while _BUSY.keys() - {threading.get_ident()} and (left := end - time.monotonic()) > 0:
        _TURN.wait(left)
    if not _BUSY:
        for database in list(_OPEN):
            database.close()


def _after_in_child() -> None:
    for other in _BUSY.keys() - {threading.get_ident()}:
        del _BUSY[other]
    _TURN.release()


os.register_at_fork(before=_before, after_in_parent=_TURN.release, after_in_child=_after_in_child)
