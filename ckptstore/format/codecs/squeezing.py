"""Planes most of whose bytes are a few neighbours: these in few bits, several to a byte, and the others apart.

::

    common   the last `bits` of every byte less the offset, 8 // bits to a byte; nothing when `bits` is 0
    gaps     how far each of the others lies behind the one before, or the start: below 240, or 240 + k for 240 * 2**k
    others   these bytes themselves; common ones are among them, as steps on the way to what is far

The first bytes of a plane have the last bits in `common`, those that follow the bits before them, and so on.

Exponents of trained numbers mostly lie within 16 neighbours, the upper bytes of small differences within four, or are
one value. A symbol takes zstd's Huffman coding a bit at least, and its time: fewer are smaller, and faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane

Places = npt.NDArray[np.intp]

WHOLE = 8
NARROW = (4, 2, 0)
"""Bits of what is common."""
_FAR = 240
_POWERS = np.arange(10)
_HOPS = _FAR << _POWERS
_STEPS = np.concatenate([np.arange(_FAR), _HOPS, np.full(256 - _FAR - len(_HOPS), BLOCK_WORDS)])
"""How far each gap leads; the last ones out of every plane."""


def best_offset(counts: npt.NDArray[np.intp], bits: int) -> tuple[int, float]:
    """Where the neighbours begin that most bytes are, of how often each value is found, and the share that they are."""
    near = 1 << bits
    within = np.convolve(np.concatenate([counts, counts[: near - 1]]), np.ones(near, int), "valid")
    offset = int(within.argmax())
    return offset, int(within[offset]) / max(int(counts.sum()), 1)


def squeeze(plane: Plane, bits: int, offset: int, tools: Tools) -> tuple[Plane, Plane, Plane]:
    """What is common, gaps, and others; the first one stays until the next call."""
    count, symbols = len(plane), symbols_of(len(plane), bits)
    moved = tools.array(1, max(count, symbols * _per_byte(bits)), "moved")
    np.subtract(plane, np.uint8(offset), out=moved[:count])
    moved[count:] = 0
    far = tools.array(1, count, "spare").view(np.bool_)
    where, gaps = _gaps(np.flatnonzero(np.greater_equal(moved[:count], 1 << bits, out=far)))
    return _packed(moved, symbols, bits, tools), gaps, plane[where]


def _packed(moved: Plane, symbols: int, bits: int, tools: Tools) -> Plane:
    common, spare, mask = tools.array(1, symbols, "common"), tools.array(1, symbols, "spare"), (1 << bits) - 1
    for place in range(_per_byte(bits)):
        part = moved[place * symbols : (place + 1) * symbols]
        if place == 0:
            np.bitwise_and(part, mask, out=common)
            continue
        np.bitwise_and(part, mask, out=spare)
        np.multiply(spare, 1 << bits * place, out=spare)  # a shift to the left is slower on bytes
        np.bitwise_or(common, spare, out=common)
    return common


def _gaps(where: Places) -> tuple[Places, Plane]:
    """The places, with those between that lead to far ones, and the gaps."""
    gaps = _differences(where)
    far = gaps >= _FAR
    if not far.any():
        return where, gaps.astype(np.uint8)
    before, hops = (where[far] - gaps[far])[:, np.newaxis], (gaps[far] // _FAR)[:, np.newaxis]
    between = (before + _FAR * (hops >> _POWERS << _POWERS))[hops >> _POWERS & 1 > 0]
    where = np.sort(np.concatenate([where, between]))
    gaps = _differences(where)
    far = gaps >= _FAR
    gaps[far] = _FAR + np.searchsorted(_HOPS, gaps[far])
    return where, gaps.astype(np.uint8)


def _differences(where: Places) -> Places:
    found = where.copy()
    np.subtract(where[1:], where[:-1], out=found[1:])
    return found


def places(gaps: Plane, count: int) -> Places:
    """Where in `count` bytes the others lie. Raises CorruptData for gaps that lead out of them."""
    where = np.cumsum(_STEPS[gaps] if gaps.max(initial=0) >= _FAR else gaps, dtype=np.intp)
    if len(where) and where[-1] >= count:
        raise CorruptData(f"a squeezed plane of {count} bytes tells of one at {where[-1]}")
    return where


def spread(common: Plane, bits: int, offset: int, out: Plane) -> None:
    """Fill `out`, which has as many bytes as `common` tells of, or any number when there is nothing to tell."""
    symbols, mask = len(common), (1 << bits) - 1
    if not bits:
        out.fill(offset)
        return
    for place in range(_per_byte(bits)):
        part = out[place * symbols : (place + 1) * symbols]
        rest = np.right_shift(common, bits * place, out=part) if place else common
        if bits * (place + 1) < WHOLE:  # nothing lies before the last ones
            np.bitwise_and(rest, mask, out=part)
    np.add(out, np.uint8(offset), out=out)


def symbols_of(count: int, bits: int) -> int:
    """How many bytes `common` has for a plane of `count`."""
    per = _per_byte(bits)
    return -(-count // per) if per else 0


def _per_byte(bits: int) -> int:
    return 8 // bits if bits else 0
