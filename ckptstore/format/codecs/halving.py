"""A plane of bytes cut into the upper and the lower halves of its bytes, two of them to a byte.

Exponents of trained numbers mostly lie within 16 neighbours. Moved so that these are 0 to 15, their upper halves are
zeros, and two lower ones are one symbol: half as many symbols to code, and each nearer to its entropy.
"""

from __future__ import annotations

import numpy as np

from ckptstore.format.codecs.cutting import Cut, Cutter, Plane
from ckptstore.format.codecs.words import Words, word_type

_PAIR = Cut(2)
_INNER = 0x00F0


def best_offset(plane: Plane) -> int:
    """Where the 16 neighbouring values begin that most bytes have."""
    counts = np.bincount(plane, minlength=256)
    within = np.convolve(np.concatenate([counts, counts[:15]]), np.ones(16, int), "valid")
    return int(within.argmax())


class Halver:
    """Halves planes of up to `most` bytes, and joins them, in memory that every plane uses anew."""

    def __init__(self, most: int) -> None:
        self._most = (most + 1) // 2
        self._pairs = np.empty(self._most, word_type(2))
        self._cutter = Cutter(_PAIR, self._most)

    def halve(self, plane: Plane, offset: int) -> list[Plane]:
        """Upper and lower halves of the bytes less `offset`; the last one's neighbour is 0 when their number is odd."""
        pairs = self._pairs[: (len(plane) + 1) // 2]
        moved = pairs.view(np.uint8)
        moved[len(plane) :] = 0
        np.subtract(plane, np.uint8(offset), out=moved[: len(plane)])
        self._exchange(pairs)
        return self._cutter.cut(pairs)

    def join(self, halves: list[Plane], count: int, offset: int) -> Plane:
        """The plane of `count` bytes; it stays until the next call."""
        pairs = self._pairs[: (count + 1) // 2]
        self._cutter.join(halves, pairs)
        self._exchange(pairs)
        plane = pairs.view(np.uint8)[:count]
        np.add(plane, np.uint8(offset), out=plane)
        return plane

    def _exchange(self, pairs: Words) -> None:
        """The inner two of every pair's four halves change places: lower with lower, upper with upper."""
        spare = self._cutter.spare(2, len(pairs))
        np.right_shift(pairs, 4, out=spare)
        np.bitwise_xor(spare, pairs, out=spare)
        np.bitwise_and(spare, _INNER, out=spare)
        np.bitwise_xor(pairs, spare, out=pairs)
        np.left_shift(spare, 4, out=spare)
        np.bitwise_xor(pairs, spare, out=pairs)
