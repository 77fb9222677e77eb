"""Connections that nobody uses go back to the server, which has few of them for all processes there are."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from sqlalchemy import Engine, event

from ckptstore.locks import Lock

LINGER_SECONDS = 0.5
"""How long a connection waits for its next transaction: a new one takes tens of milliseconds where it is encrypted."""


def give_back_idle(engine: Engine) -> None:
    """From now on, those that were not used for `LINGER_SECONDS`, all together."""
    event.listen(engine, "checkin", _Watch(engine).used)


class _Watch:
    """A thread that lives while there are idle connections."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._watching = False
        self._used = 0.0

    def used(self, *_: object) -> None:
        """A connection becomes idle."""
        with self._lock, suppress(RuntimeError):  # no thread begins any more when the interpreter exits
            self._used = time.monotonic()
            if not self._watching:
                threading.Thread(target=self._watch, daemon=True).start()
                self._watching = True

    def _watch(self) -> None:
        while (left := self._left()) > 0:
            time.sleep(left)
        self._engine.pool.dispose()

    def _left(self) -> float:
        """Seconds to wait; without any, this thread watches no more."""
        with self._lock:
            left = self._used + LINGER_SECONDS - time.monotonic()
            self._watching = left > 0
            return left
