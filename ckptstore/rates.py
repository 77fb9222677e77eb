"""How fast something goes, judged by what was seen of it lately."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ckptstore.locks import Lock

Clock = Callable[[], float]
"""Gives seconds."""


@dataclass
class Rate:
    """Bytes that went in and came out, and the seconds this took; what lies `memory` bytes back does not count."""

    memory: int
    taken: float = 0.0
    made: float = 0.0
    seconds: float = 0.0

    def add(self, taken: int, made: int, seconds: float) -> None:
        """See one more, older ones counting less."""
        keep = max(0.0, 1 - taken / self.memory)
        self.taken = self.taken * keep + taken
        self.made = self.made * keep + made
        self.seconds = self.seconds * keep + seconds

    def fade(self, other: Rate, share: float) -> None:
        """Become a bit more like another one."""
        keep = max(0.0, 1 - share)
        self.taken = self.taken * keep + other.taken * (1 - keep)
        self.made = self.made * keep + other.made * (1 - keep)
        self.seconds = self.seconds * keep + other.seconds * (1 - keep)


class Meter:
    """The rate of what several threads do at once: its seconds are those in which any of them did.

    Args:
        rate: what is guessed, or known, at first.
        clock: gives seconds.
    """

    def __init__(self, rate: Rate, clock: Clock = time.perf_counter) -> None:
        self.rate, self._clock = rate, clock
        self._lock = Lock()
        self._process = os.getpid()
        self._active = 0
        self._since = 0.0

    def seen(self) -> tuple[float, float]:
        """Bytes, and seconds."""
        with self._lock:
            return self.rate.taken, self.rate.seconds

    def fade(self, other: Rate, share: float) -> None:
        """See `Rate.fade`."""
        with self._lock:
            self.rate.fade(other, share)

    @contextmanager
    def measuring(self, size: int) -> Iterator[list[int]]:
        """Around what is done with some bytes; the lengths of what comes out go into the list, if not as many do.

        What fails does not count.
        """
        made: list[int] = []
        self._begin()
        try:
            yield made
        except BaseException:
            self._end()
            raise
        seconds = self._end()
        with self._lock:
            self.rate.add(size, sum(made) if made else size, seconds)

    def _begin(self) -> None:
        with self._lock:
            if self._process != os.getpid():  # threads that were at it stayed behind in a fork
                self._process, self._active = os.getpid(), 0
            if not self._active:
                self._since = self._clock()
            self._active += 1

    def _end(self) -> float:
        """Seconds since another one began or ended."""
        with self._lock:
            before, self._since = self._since, self._clock()
            self._active -= 1
            return self._since - before
