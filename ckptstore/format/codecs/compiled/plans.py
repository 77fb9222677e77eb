"""The arguments of compiled packing and unpacking: a plan, and which memory to work in."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptstore.format.codecs.compiled.calls import at
from ckptstore.format.codecs.layout import EXPONENT, WHOLE_BYTES, Cut, Plan
from ckptstore.format.codecs.words import BLOCK_WORDS

SPLITS = (3, 7, WHOLE_BYTES)
COMMON, GAPS, OTHERS, ROWS = range(8, 12)
"""The rows of memory behind those of the planes, for what a plane is squeezed to; and how many rows there are."""


class CompiledPlan(NamedTuple):
    """A plan: of each plane its bits, its offset, whether it is coded, and its parts; and how words are cut."""

    ways: npt.NDArray[np.int64]
    split: int
    center: int
    kept: bool
    differences: bool

    @property
    def given(self) -> tuple[int, ...]:
        """To a compiled loop."""
        return at(self.ways), len(self.ways), self.split, self.center, self.kept, self.differences


class Memory:
    """For planes and what they are squeezed to; for a frame, or lower halves that stay whole; for halves of words.

    For one thread at a time, since every block uses it.
    """

    def __init__(self) -> None:
        self._rows, self._spare = np.empty((ROWS, BLOCK_WORDS), np.uint8), np.empty(2 * BLOCK_WORDS, np.uint8)
        self._halves = np.empty((2, BLOCK_WORDS), np.uint16)
        self.given = at(self._rows), at(self._spare), at(self._halves)


def knows(cut: Cut, *, differences: bool) -> bool:
    """Whether such words are cut and joined here: not those of eight bytes, which are rare, nor what nobody writes."""
    return cut.width < WHOLE_BYTES and cut.split in SPLITS and (cut.width == 1 or cut.signed == differences)


@lru_cache(1024)
def compiled_plan(plan: Plan, *, differences: bool) -> CompiledPlan:
    """The plan of words that are differences, or not."""
    ways, cut = np.array([(way.bits, way.offset, way.coded, way.parts) for way in plan.ways], np.int64), plan.cut
    return CompiledPlan(ways, cut.split, cut.center << EXPONENT, cut.kept, differences)
