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

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptstore.format.codecs.words import BLOCK_WORDS, Plane

WHOLE = 8
NARROW = (4, 2, 0)
"""Bits of what is common."""
LEAST_COMMON = 0.6
"""The share of bytes that must be neighbours; of others it would take much to say where they are."""
FAR = 240
POWERS = np.arange(10)
HOPS = FAR << POWERS
STEPS = np.concatenate([np.arange(FAR), HOPS, np.full(256 - FAR - len(HOPS), BLOCK_WORDS)])
"""How far each gap leads; the last ones out of every plane."""
_NOTHING = np.zeros(1, np.intp)

Counts = npt.NDArray[np.intp]
"""How often each of the 256 bytes is found."""


class Weight(NamedTuple):
    """What a plane comes to when it is squeezed to so many bits, or not, and its parts are coded.

    Attributes:
        bits, offset: how it is squeezed.
        size: bytes of all parts.
        symbols: how many bytes a description of each code lists, in all parts that are frames.
        coded: bytes that these parts hold.
        gaps: how many bytes are put in their places one by one.
    """

    bits: int
    offset: int
    size: int
    symbols: int
    coded: int
    gaps: int


def counts_of(plane: Plane) -> Counts:
    """Of a plane."""
    return np.bincount(plane, minlength=256)


def best_offset(counts: Counts, bits: int) -> tuple[int, float]:
    """Where the neighbours begin that most bytes are, and the share that they are."""
    near = 1 << bits
    below = np.concatenate([_NOTHING, counts, counts[: near - 1]]).cumsum()
    within = below[near:] - below[:-near]
    offset = int(within.argmax())
    return offset, int(within[offset]) / max(int(below[len(counts)]), 1)


def symbols_of(count: int, bits: int) -> int:
    """How many bytes `common` has for a plane of `count`."""
    per = per_byte(bits)
    return -(-count // per) if per else 0


def per_byte(bits: int) -> int:
    """How many of them fit a byte; none when they have no bits."""
    return WHOLE // bits if bits else 0
