"""How much encoding pays: as much as makes a commit faster, since what is smaller is written sooner."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from ckptstore.format.codecs import Effort
from ckptstore.rates import Clock, Meter, Rate

_EFFORTS: tuple[Effort, ...] = ("best", "fast", "light")
_MEMORY_BYTES = 1 << 30
"""About how far back measurements count."""
_GUESSED_BYTES = 16 << 20
"""As much as has been measured, guesses count."""
_GUESSES: dict[Effort, tuple[float, float]] = {"best": (3e8, 0.65), "fast": (2e9, 0.83)}
"""Bytes encoded in a second, and the share that is left: of a trained state, on two cores."""
_NEAR, _FAR = 1e9, 1e8
"""Bytes written in a second, here and over a network."""
_WORTH_NEAR, _WORTH_FAR = 4.0, 1.5
"""How many times as fast as writing encoding must be: it takes the cores away, and a local disk needs them more."""


class Pace:
    """What encoding and writing were seen to take on one storage. Kept from commit to commit; safe for threads.

    Chunks are encoded while packs are written, so that a byte costs the longer of the two: the time of encoding it, by
    so much as encoding is in the way of writing, or the time of writing what it becomes. What was not seen is guessed.

    Args:
        far: whether the storage is behind a network.
        clock: gives seconds.
    """

    def __init__(self, *, far: bool, clock: Clock = time.perf_counter) -> None:
        self._far = far
        self._efforts = {effort: Meter(_guess(*guess), clock) for effort, guess in _GUESSES.items()}
        self._puts = Meter(_guess(_FAR if far else _NEAR, 1.0), clock)

    def __reduce__(self) -> tuple[partial[Pace], tuple[()]]:
        return partial(Pace, far=self._far), ()

    def choose(self) -> Effort:
        """The effort for what comes next: the one that takes least time.

        A guess, which takes no lock: a signal's handler may interrupt it, and wait for a commit.
        """
        return min(_EFFORTS, key=self._cost)

    def _cost(self, effort: Effort) -> float:
        """Seconds for a byte."""
        written = self._puts.rate
        writing = written.seconds / written.taken
        if effort == "light":
            return writing
        seen = self._efforts[effort].rate
        worth = _WORTH_FAR if self._far else _WORTH_NEAR
        return max(worth * seen.seconds / seen.taken, writing * seen.made / seen.taken)

    def encoding(self, effort: Effort, taken: int) -> AbstractContextManager[list[int]]:
        """Around the encoding of some bytes, by any thread; the lengths of what comes out go into the list."""
        return self._efforts[effort].measuring(taken) if effort in self._efforts else nullcontext([])

    def putting(self, size: int) -> AbstractContextManager[list[int]]:
        """Around the writing of an object; several may be written at once."""
        return self._puts.measuring(size)


def _guess(rate: float, share: float) -> Rate:
    return Rate(_MEMORY_BYTES, _GUESSED_BYTES, _GUESSED_BYTES * share, _GUESSED_BYTES / rate)
