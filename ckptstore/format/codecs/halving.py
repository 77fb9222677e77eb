"""A plane of bytes cut into the upper and the lower halves of its bytes, two of them to a byte.

Exponents of trained numbers mostly lie within 16 neighbours. Moved so that these are 0 to 15, their upper halves are
zeros, and two lower ones are one symbol: half as many symbols to code, and each nearer to its entropy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptstore.format.codecs.cutting import Plane

_LOWER, _UPPER = 0x0F, 0xF0


def best_offset(counts: npt.NDArray[np.intp]) -> int:
    """Where the 16 neighbouring values begin that most bytes have, of how often each of the 256 is found."""
    within = np.convolve(np.concatenate([counts, counts[:15]]), np.ones(16, int), "valid")
    return int(within.argmax())


class Halver:
    """Halves planes of up to `most` bytes, and joins them, in memory that every plane uses anew."""

    def __init__(self, most: int) -> None:
        pairs = (most + 1) // 2
        self._whole = np.empty(2 * pairs, np.uint8)
        self._arrays = [np.empty(pairs, np.uint8) for _ in range(3)]

    def halve(self, plane: Plane, offset: int) -> tuple[Plane, Plane]:
        """Upper and lower halves of the bytes less `offset`; the plane's second half, and a 0, go beside its first."""
        count = len(plane)
        upper, lower, spare = (array[: (count + 1) // 2] for array in self._arrays)
        first, second = self._ends(count)
        np.subtract(plane, np.uint8(offset), out=self._whole[:count])
        second[count // 2 :] = 0
        np.right_shift(first, 4, out=upper)
        np.bitwise_and(second, _UPPER, out=spare)
        np.bitwise_or(upper, spare, out=upper)
        np.multiply(second, 16, out=lower)  # a shift to the left is slower on bytes
        np.bitwise_and(first, _LOWER, out=spare)
        np.bitwise_or(lower, spare, out=lower)
        return upper, lower

    def join(self, upper: Plane, lower: Plane, count: int, offset: int) -> Plane:
        """The plane of `count` bytes; it stays until the next call."""
        spare = self._arrays[0][: len(upper)]
        first, second = self._ends(count)
        np.multiply(upper, 16, out=first)
        np.bitwise_and(lower, _LOWER, out=spare)
        np.bitwise_or(first, spare, out=first)
        np.right_shift(lower, 4, out=second)
        np.bitwise_and(upper, _UPPER, out=spare)
        np.bitwise_or(second, spare, out=second)
        plane = self._whole[:count]
        np.add(plane, np.uint8(offset), out=plane)
        return plane

    def _ends(self, count: int) -> tuple[Plane, Plane]:
        half = (count + 1) // 2
        return self._whole[:half], self._whole[half : 2 * half]
