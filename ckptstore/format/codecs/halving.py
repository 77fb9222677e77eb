"""A plane of bytes cut into the upper and the lower halves of its bytes, two of them to a byte.

Exponents of trained numbers mostly lie within 16 neighbours. Moved so that these are 0 to 15, their upper halves are
zeros, and two lower ones are one symbol: half as many symbols to code, and each nearer to its entropy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane

_LOWER, _UPPER = 0x0F, 0xF0


def best_offset(counts: npt.NDArray[np.intp]) -> int:
    """Where the 16 neighbouring values begin that most bytes have, of how often each of the 256 is found."""
    within = np.convolve(np.concatenate([counts, counts[:15]]), np.ones(16, int), "valid")
    return int(within.argmax())


def halve(plane: Plane, offset: int, tools: Tools) -> tuple[Plane, Plane]:
    """Upper and lower halves of the bytes less `offset`; the plane's second half, and a 0, go beside its first."""
    count, half = len(plane), (len(plane) + 1) // 2
    whole = tools.array(1, 2 * half, "whole")
    np.subtract(plane, np.uint8(offset), out=whole[:count])
    whole[count:] = 0
    first, second = whole[:half], whole[half:]
    upper, lower, spare = (tools.array(1, half, use) for use in ("upper", "lower", "spare"))
    np.right_shift(first, 4, out=upper)
    np.bitwise_and(second, _UPPER, out=spare)
    np.bitwise_or(upper, spare, out=upper)
    np.multiply(second, 16, out=lower)  # a shift to the left is slower on bytes
    np.bitwise_and(first, _LOWER, out=spare)
    np.bitwise_or(lower, spare, out=lower)
    return upper, lower


def join_halves(upper: Plane, lower: Plane, out: Plane, offset: int, tools: Tools) -> Plane:
    """Fill `out`, as many bytes as both have halves."""
    half, spare = len(upper), tools.array(1, len(upper), "spare")
    first, second = out[:half], out[half:]
    np.multiply(upper, 16, out=first)
    np.bitwise_and(lower, _LOWER, out=spare)
    np.bitwise_or(first, spare, out=first)
    np.right_shift(lower, 4, out=second)
    np.bitwise_and(upper, _UPPER, out=spare)
    np.bitwise_or(second, spare, out=second)
    np.add(out, np.uint8(offset), out=out)
    return out
