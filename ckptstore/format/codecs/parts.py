"""Where the parts of each block of a payload of planes are, and how they are coded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptstore.format.codecs.layout import LENGTH, Plan, blocks_of, borders_of
from ckptstore.format.codecs.squeezing import WHOLE
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane

Numbers = npt.NDArray[np.int64]

STORED, CODED, ALIKE = range(3)
"""Whether a part is as it is, a frame of zstd's, or one byte for all."""
_OTHERS, _GAPS = -2, -1
_LENGTH = LENGTH.itemsize


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

    @property
    def tail(self) -> Plane:
        """The bytes behind the last whole word."""
        return self.stored[self.borders[-1] :]

    def new_table(self) -> Numbers:
        """Room for what `tabulate` fills in."""
        return np.empty((len(blocks_of(self.words)), len(self.shapes), 4), np.int64)


def source_of(payload: memoryview, plan: Plan, words: int, tail: int) -> Source:
    """Of so many words, and so many bytes behind them. Raises CorruptData."""
    borders = borders_of(payload, plan, words, tail)
    return Source(np.frombuffer(payload, np.uint8), borders, _shapes_of(plan), words)


@lru_cache(1024)
def _shapes_of(plan: Plan) -> Numbers:
    shapes: list[int] = []
    for way, width in zip(plan.ways, plan.cut.sizes, strict=True):
        shapes += [WHOLE * width] if way.bits == WHOLE else [way.bits, _GAPS, _OTHERS]
    return np.array(shapes, np.int64)


def tabulate(
    stored: Plane, borders: Sequence[int] | Numbers, shapes: Sequence[int] | Numbers, words: int, table: Numbers
) -> bool:
    """Fill the table: of each part of each block how it is coded, where it begins, its length, how many bytes it makes.

    False when there is one that cannot be. Both Python and numba run this.
    """
    others = 0
    for block in range(len(table)):
        count = min(BLOCK_WORDS, words - block * BLOCK_WORDS)
        for place in range(len(shapes)):
            border = block * len(shapes) + place
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
                if others > count:
                    return False
            length = stop - start
            coding = STORED if length == size else ALIKE if length == 1 else CODED
            if (coding != STORED and size == 0) or (coding == CODED and size > count):
                return False
            row = table[block, place]
            row[0], row[1], row[2], row[3] = coding, start, length, size
    return True
