"""Trying again what failed for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which nothing is tried again."""

_SHORTEST, _LONGEST = 0.1, 5.0


def patiently(act: Callable[[], T], transient: type[Exception], patience: float | None = None) -> T:
    """What `act` gives; while it raises `transient`, it is called again, until `patience` seconds have passed.

    The waits between tries are random, up to a bound that doubles, so that a thousand writers do not come back at once.
    """
    end = time.monotonic() + (PATIENCE if patience is None else patience)
    most = _SHORTEST
    while True:
        try:
            return act()
        except transient:
            wait = random.uniform(0, most)  # noqa: S311 - no secret
            if time.monotonic() + wait > end:
                raise
        time.sleep(wait)
        most = min(_LONGEST, 2 * most)
