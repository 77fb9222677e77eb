"""Trying again what failed for a moment."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which nothing is tried again."""

_SHORTEST, _LONGEST = 0.1, 5.0
_QUIET = 2.0
_LOG = logging.getLogger("ckptstore")


def patiently(act: Callable[[], T], transient: type[Exception], patience: float | None = None) -> T:
    """What `act` gives; while it raises `transient`, it is called again, until `patience` seconds have passed.

    The waits between tries are random, up to a bound that doubles, so that a thousand writers do not come back at once.
    When it takes longer, that is logged once to the logger `ckptstore`.
    """
    begun = time.monotonic()
    end, warned = begun + (PATIENCE if patience is None else patience), False
    most = _SHORTEST
    while True:
        try:
            return act()
        except transient as error:
            now, wait = time.monotonic(), random.uniform(0, most)  # noqa: S311 - no secret
            if now + wait > end:
                raise
            if not warned and now - begun > _QUIET:
                _LOG.warning("trying again for %.0f s more: %s", end - now, error)
                warned = True
        time.sleep(wait)
        most = min(_LONGEST, 2 * most)
