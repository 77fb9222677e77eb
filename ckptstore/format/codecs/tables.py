"""Where the parts of the blocks of a payload are, and which of them are to be decoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.layout import LENGTH, Plan
from ckptstore.format.codecs.squeezing import WHOLE
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane

STORED, DECODED, ALIKE = range(3)
"""Where the bytes of a part are: in the payload, among those decoded, or all of them are one."""
_OTHERS, _GAPS = -2, -1
_LENGTH = LENGTH.itemsize
_TOGETHER = 1 << 20
"""Bytes to decode: so few take little memory, so many spare waiting for Python's lock."""

Numbers = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.uint64]


class Source(NamedTuple):
    """A payload of planes.

    Attributes:
        stored: its bytes.
        borders: where each part of each block begins, and where the last one ends.
        shapes: of each part of a block the bits that it has of a word, or that it is gaps, or others.
        words: how many there are.
    """

    stored: Plane
    borders: Numbers
    shapes: Numbers
    words: int


class Tables(NamedTuple):
    """Of some blocks.

    Attributes:
        rows: of each part of each block where its bytes are, where they begin or what they all are, how many they are.
        frames: where each of zstd's frames begins in the payload, and how long it is.
        sizes: how many bytes each of them holds.
    """

    rows: Numbers
    frames: Sizes
    sizes: Sizes


@lru_cache(1024)
def shapes_of(plan: Plan) -> Numbers:
    """See `Source`."""
    shapes: list[int] = []
    for way, width in zip(plan.ways, plan.cut.sizes, strict=True):
        shapes += [WHOLE * width] if way.bits == WHOLE else [way.bits, _GAPS, _OTHERS]
    return np.array(shapes)


def room_for(blocks: int, parts: int) -> Tables:
    """For the parts of so many blocks."""
    most = blocks * parts
    return Tables(np.empty((blocks, parts, 3), np.int64), np.empty((most, 2), np.uint64), np.empty(most, np.uint64))


def filled(tables: Tables, blocks: int, frames: int) -> Tables:
    """What `tabulate` filled. Raises CorruptData where it could not."""
    if not blocks:
        raise CorruptData("a part of a plane does not hold the bytes that it stands for")
    return Tables(tables.rows[:blocks], tables.frames[:frames], tables.sizes[:frames])


def tabulate(
    stored: Plane,
    borders: Sequence[int] | Numbers,
    shapes: Sequence[int] | Numbers,
    words: int,
    first: int,
    rows: Numbers,
    frames: Sizes,
    sizes: Sizes,
) -> tuple[int, int]:
    """Fill tables for the blocks from the `first` on that are decoded together: how many blocks and frames these are.

    No blocks where a part cannot be. Both Python and numba run this.
    """
    found = decoded = taken = others = 0
    while taken < len(rows) and decoded < _TOGETHER:
        count = min(BLOCK_WORDS, words - (first + taken) * BLOCK_WORDS)
        for place in range(len(shapes)):
            border = (first + taken) * len(shapes) + place
            start, stop, size = borders[border], borders[border + 1], others
            if shapes[place] >= 0:
                size = -(-count * shapes[place] // WHOLE)
            elif shapes[place] == _GAPS:
                others = 0
                if stop - start > _LENGTH:
                    for byte in range(_LENGTH):
                        others |= int(stored[start + byte]) << WHOLE * byte
                    start += _LENGTH
                size = others
            row, held = rows[taken, place], stop - start
            if others > count:
                return 0, 0
            if held == size:
                row[0], row[1], row[2] = STORED, start, size
            elif held == 1 and size > 0:
                row[0], row[1], row[2] = ALIKE, stored[start], size
            elif held > 0 and 0 < size <= count:
                row[0], row[1], row[2] = DECODED, decoded, size
                frames[found, 0], frames[found, 1], sizes[found] = start, held, size
                found, decoded = found + 1, decoded + size
            else:
                return 0, 0
        taken += 1
    return taken, found
