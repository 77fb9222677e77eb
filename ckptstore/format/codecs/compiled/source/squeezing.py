"""Planes squeezed to few bits, compiled; see `squeezing`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.plans import COMMON, GAPS, OTHERS
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, kind, read
from ckptstore.format.codecs.squeezing import FAR, NARROW, POWERS, WHOLE, per_byte
from ckptstore.format.codecs.words import Plane, Words

_FAR, _POWERS = FAR, len(POWERS)
_BYTE = np.uint8
_LINE = 128
_LOWS, _TOPS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)


@cache
def squeezer(bits: int) -> Helper:
    """Others are looked for by lines, and in those that have any by eights: mostly there are none."""
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)
    far, fars = _BYTE(0x100 - (1 << bits)), np.uint64((0x100 - (1 << bits)) * 0x0101010101010101)

    def squeeze(plane: Plane, eights: Words, offset: int, common: Plane, gaps: Plane, others: Plane) -> int:
        for place in range(places):
            part = plane[place * common.size : (place + 1) * common.size]
            for at in range(part.size):
                near = _BYTE(_BYTE(_BYTE(part[at] - offset) & mask) << _BYTE(bits * place))
                common[at] = common[at] | near if place else near
        offsets = np.uint64(offset) * np.uint64(0x0101010101010101)
        told, last = 0, 0
        for line in range(0, plane.size, _LINE):
            found = _BYTE(0)
            part = plane[line : line + _LINE]
            for at in range(part.size):
                found = _BYTE(found | _BYTE(_BYTE(part[at] - offset) & far))
            if not found:
                continue
            for group in range(line // 8, min(line // 8 + _LINE // 8, eights.size + 1)):
                if group < eights.size:
                    eight = eights[group]
                    moved = ((eight | _TOPS) - (offsets & _LOWS)) ^ ((eight ^ ~offsets) & _TOPS)
                    if not moved & fars:
                        continue
                for place in range(8 * group, min(8 * group + 8, plane.size)):
                    if _BYTE(plane[place] - offset) & far:
                        for power in range(_POWERS - 1 if place - last >= _FAR else -1, -1, -1):
                            if place - last >= _FAR << power:
                                last += _FAR << power
                                gaps[told], others[told] = _FAR + power, plane[last]
                                told += 1
                        gaps[told], others[told] = place - last, plane[place]
                        told += 1
                        last = place
        return told

    return helping(squeeze, types.intp(read(1), read(8), kind(1), given(1), given(1), given(1)))


@cache
def squeezer_to_rows() -> Helper:
    """What squeezes a plane to any of `NARROW` bits, into the rows of memory for that; how many others there are."""
    four, two, none = (squeezer(bits) for bits in NARROW)

    def squeeze(plane: Plane, bits: int, offset: int, rows: Plane) -> int:
        common, gaps, others = rows[COMMON], rows[GAPS], rows[OTHERS]
        common = common[: (plane.size * bits + WHOLE - 1) // WHOLE]
        eights = plane[: plane.size // 8 * 8].view(np.uint64)
        if bits == NARROW[0]:
            found: int = four(plane, eights, offset, common, gaps, others)
        elif bits == NARROW[1]:
            found = two(plane, eights, offset, common, gaps, others)
        else:
            found = none(plane, eights, offset, common, gaps, others)
        return found

    return helping(squeeze, types.int64(read(1), types.int64, types.int64, given(1, 2)))


def squeezing(bits: int) -> Helper:
    """Fills what is common, and as many gaps and others as it says."""
    squeeze = squeezer(bits)

    def entry(plane: Any, size: int, offset: int, common: Any, symbols: int, gaps: Any, others: Any) -> Any:
        return squeeze(
            array_at(plane, size, np.uint8),
            array_at(plane, size // 8, np.uint64),
            offset,
            array_at(common, symbols, np.uint8),
            array_at(gaps, size, np.uint8),
            array_at(others, size, np.uint8),
        )

    return entry
