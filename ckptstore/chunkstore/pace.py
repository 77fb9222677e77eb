"""How much encoding pays: as much as makes a commit faster, since what is smaller is written sooner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ckptstore.format.codecs import Level

_EFFORTS: tuple[Level, ...] = ("best", "fast", "none")
_MEMORY_BYTES = 1 << 30
"""About how far back measurements count."""


@dataclass
class _Rate:
    """Bytes that went in and came out, and the seconds this took, older ones counting less."""

    taken: float = 0.0
    made: float = 0.0
    seconds: float = 0.0

    def add(self, taken: int, made: int, seconds: float) -> None:
        keep = max(0.0, 1 - taken / _MEMORY_BYTES)
        self.taken = self.taken * keep + taken
        self.made = self.made * keep + made
        self.seconds = self.seconds * keep + seconds


class Pace:
    """What encoding and writing were seen to take on one storage. Kept from commit to commit; safe for threads.

    Chunks are encoded while packs are written, so that a byte costs the longer of the two: the time of encoding it, or
    the time of writing what it becomes.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._efforts = {effort: _Rate() for effort in _EFFORTS if effort != "none"}
        self._puts = _Rate()
        self._active = 0
        self._since = 0.0

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()

    def choose(self) -> Level:
        """The effort for what comes next: each once, to see what it takes, and then the one that takes least."""
        with self._lock:
            unseen = next((effort for effort, rate in self._efforts.items() if not rate.taken), None)
            if unseen is not None or not self._puts.seconds:
                return unseen or "best"
            return min(_EFFORTS, key=self._cost)

    def _cost(self, effort: Level) -> float:
        """Seconds for a byte."""
        writing = self._puts.seconds / self._puts.taken
        if effort == "none":
            return writing
        seen = self._efforts[effort]
        return max(seen.seconds / seen.taken, writing * seen.made / seen.taken)

    @contextmanager
    def encoding(self, effort: Level, taken: int) -> Iterator[list[int]]:
        """Around the encoding of some bytes; the lengths of what comes out are to be put into the list."""
        start, made = self._clock(), list[int]()
        yield made
        if effort in self._efforts:
            with self._lock:
                self._efforts[effort].add(taken, sum(made), self._clock() - start)

    @contextmanager
    def putting(self, size: int) -> Iterator[None]:
        """Around the writing of an object; several may be written at once."""
        with self._lock:
            if not self._active:
                self._since = self._clock()
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                now = self._clock()
                self._puts.add(size, size, now - self._since)
                self._since = now
                self._active -= 1
