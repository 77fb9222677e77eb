"""Whether files are written through the page cache: only to a disk that is slow, as it was seen lately.

Finding pages for what nobody reads soon costs more of the processor than all else, and a fast disk waits for that. A
slow one does not, and gains: of memory in pages of 4 KiB a request past the page cache is 1 MiB at most, one at a time,
where those that the page cache makes are larger, and several are under way. What a disk takes from this process is what
counts: one that many processes share is slow to each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptstore.rates import Clock, Meter, Rate

_LEAST_BYTES = 16 << 20
"""Smaller files tell how long a flush takes, not how fast a disk is."""
_MEMORY_BYTES = 256 << 20
_SEEN_BYTES = 96 << 20
"""Before as much was seen, nothing changes."""
_SLOW, _FAST = 4e8, 5e8
"""Bytes a second past the page cache below which a disk is slow, and through it above which it is no more..."""
_GAIN = 2
"""...unless that is less than so many times what it took past it: what the page cache itself can win."""


class PageCache:
    """Of one disk. Safe for threads.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._enough = _FAST
        self._turn(used=False)

    @contextmanager
    def writing(self, size: int) -> Iterator[bool]:
        """Around the writing of a file of so many bytes: whether that goes through the page cache."""
        if size < _LEAST_BYTES:
            yield self._used
            return
        meter, used = self._meter, self._used
        with meter.measuring(size):
            yield used
        taken, seconds = meter.seen()
        if meter is self._meter and taken >= _SEEN_BYTES:
            if used and taken > self._enough * seconds:
                self._turn(used=False)
            elif not used and taken < _SLOW * seconds:
                self._enough = max(_FAST, _GAIN * taken / seconds)
                self._turn(used=True)

    def _turn(self, *, used: bool) -> None:
        self._used = used
        self._meter = Meter(Rate(_MEMORY_BYTES), self._clock)


_DISKS: dict[int, PageCache] = {}


def page_cache_of(folder: Path) -> PageCache:
    """That of the disk where a folder is: all that this process writes there shows how fast it is."""
    return _DISKS.setdefault(folder.stat().st_dev, PageCache())


# Threads that were writing, and what they had locked, do not come along.
os.register_at_fork(after_in_child=_DISKS.clear)
