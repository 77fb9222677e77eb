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
_FORGOTTEN_BYTES = 16 << 30
"""About after how many bytes an effort that was not made is guessed again: loops may be compiled, or cores free."""
_GUESSES: dict[Effort, tuple[float, float]] = {"best": (5e8, 0.65), "fast": (2e9, 0.83)}
"""Bytes encoded in a second, and the share that is left: of a trained state, on two cores."""
_GUESSED_BYTES = 256 << 20
"""As much as has been measured, these guesses count: the first chunks of a process wait for imports and loops."""
_NEAR, _FAR = 2e9, 1e8
"""Bytes written in a second, here and over a network."""
_GUESSED_PUTS = _LARGE = 16 << 20
"""As much as has been measured, those count; what is smaller tells little of a local disk."""
_WORTH, _WORTH_FAR, _WORTH_BESIDE = 2.5, 1.5, 4.0
"""How many times as fast as writing encoding must be: to a local disk, from which raw chunks would be read sooner than
others are decoded; over a network; and to a local disk beside training, which needs the cores.
"""


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
        self._efforts = {effort: Meter(_guess(effort), clock) for effort in _GUESSES}
        writing = _GUESSED_PUTS / (_FAR if far else _NEAR)
        self._puts = Meter(Rate(_MEMORY_BYTES, _GUESSED_PUTS, _GUESSED_PUTS, writing), clock)

    def __reduce__(self) -> tuple[partial[Pace], tuple[()]]:
        return partial(Pace, far=self._far), ()

    def choose(self, *, background: bool = False, writes: bool = True) -> Effort:
        """The effort for what comes next: the one that takes least time, also from training in the `background`.

        Where nothing `writes` to a local disk meanwhile, that waits for whoever encodes. A guess, which takes no lock:
        a signal's handler may interrupt it, and wait for a commit.
        """
        if not (self._far or writes):
            return "light"
        worth = _WORTH_FAR if self._far else _WORTH_BESIDE if background else _WORTH
        return min(_EFFORTS, key=lambda effort: self._cost(effort, worth))

    def _cost(self, effort: Effort, worth: float) -> float:
        """Seconds for a byte."""
        written = self._puts.rate
        writing = written.seconds / written.taken
        if effort == "light":
            return writing
        seen = self._efforts[effort].rate
        return max(worth * seen.seconds / seen.taken, writing * seen.made / seen.taken)

    def encoding(self, effort: Effort, taken: int) -> AbstractContextManager[list[int]]:
        """Around the encoding of some bytes, by any thread; the lengths of what comes out go into the list."""
        for other in self._efforts.keys() - {effort}:
            self._efforts[other].fade(_guess(other), taken / _FORGOTTEN_BYTES)
        return self._efforts[effort].measuring(taken) if effort in self._efforts else nullcontext([])

    def putting(self, size: int) -> AbstractContextManager[list[int]]:
        """Around the writing of an object; several may be written at once. A local disk mostly flushes small ones."""
        return self._puts.measuring(size) if self._far or size >= _LARGE else nullcontext([])


def _guess(effort: Effort) -> Rate:
    rate, share = _GUESSES[effort]
    return Rate(_MEMORY_BYTES, _GUESSED_BYTES, _GUESSED_BYTES * share, _GUESSED_BYTES / rate)
