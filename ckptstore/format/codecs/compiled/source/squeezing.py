"""Planes squeezed to few bits, compiled; see `squeezing`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.plans import COMMON, GAPS, OTHERS
from ckptstore.format.codecs.compiled.source.bits import LINE, above, trailing_zeros
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, kind, read
from ckptstore.format.codecs.squeezing import FAR, NARROW, POWERS, WHOLE, per_byte
from ckptstore.format.codecs.words import Plane

_FAR, _POWERS = FAR, len(POWERS)
_BYTE = np.uint8


@cache
def squeezer(bits: int) -> Helper:
    """Others are found by lines of bytes, each of which is a bit then: finding them one by one is mispredicted."""
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)
    outside = _outside(bits)

    def squeeze(plane: Plane, offset: int, common: Plane, gaps: Plane, others: Plane) -> Any:
        for place in range(places):
            part = plane[place * common.size : (place + 1) * common.size]
            for at in range(part.size):
                near = _BYTE(_BYTE(_BYTE(part[at] - offset) & mask) << _BYTE(bits * place))
                common[at] = common[at] | near if place else near
        count, last = 0, 0
        for line in range(0, plane.size, LINE):
            found = outside(plane[line : line + LINE], offset)
            while found:
                one: Any = line + np.int64(trailing_zeros(found))
                found &= found - np.uint64(1)
                if one - last >= _FAR:
                    for power in range(_POWERS - 1, -1, -1):
                        if one - last >= _FAR << power:
                            last += _FAR << power
                            gaps[count], others[count] = _FAR + power, plane[last]
                            count += 1
                gaps[count], others[count] = one - last, plane[one]
                count += 1
                last = one
        return count

    return helping(squeeze, types.intp(read(1), kind(1), given(1), given(1), given(1)))


@cache
def _outside(bits: int) -> Helper:
    """Which bytes of a line, or of less, are no neighbours from `offset` on: a bit for each, the last for the first."""
    near = _BYTE((1 << bits) - 1)

    def outside(part: Plane, offset: int) -> Any:
        if part.size == LINE:
            return above(part, _BYTE(offset), near)
        found = np.uint64(0)
        for at in range(part.size):
            found |= np.uint64(_BYTE(part[at] - offset) > near) << np.uint64(at)
        return found

    return helping(outside, kind(8)(read(1), kind(1)))


@cache
def squeezer_to_rows() -> Helper:
    """What squeezes a plane to any of `NARROW` bits, into the rows of memory for that; how many others there are."""
    four, two, none = (squeezer(bits) for bits in NARROW)

    def squeeze(plane: Plane, bits: int, offset: int, rows: Plane) -> int:
        common, gaps, others = rows[COMMON], rows[GAPS], rows[OTHERS]
        common = common[: (plane.size * bits + WHOLE - 1) // WHOLE]
        if bits == NARROW[0]:
            found: int = four(plane, offset, common, gaps, others)
        elif bits == NARROW[1]:
            found = two(plane, offset, common, gaps, others)
        else:
            found = none(plane, offset, common, gaps, others)
        return found

    return helping(squeeze, types.int64(read(1), types.int64, types.int64, given(1, 2)))


def squeezing(bits: int) -> Helper:
    """Fills what is common, and as many gaps and others as it says."""
    squeeze = squeezer(bits)

    def entry(plane: Any, size: int, offset: int, common: Any, symbols: int, gaps: Any, others: Any) -> Any:
        return squeeze(
            array_at(plane, size, np.uint8),
            offset,
            array_at(common, symbols, np.uint8),
            array_at(gaps, size, np.uint8),
            array_at(others, size, np.uint8),
        )

    return entry
