"""What compiled packing and unpacking have in common: a plan as they know it, and memory."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from ckptstore.format.codecs.compiled.compiling import given
from ckptstore.format.codecs.layout import EXPONENT, WHOLE_BYTES, Cut, Plan
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane, Words

SPLITS = (3, 7, WHOLE_BYTES)
COMMON, GAPS, OTHERS, _ROWS = range(8, 12)
"""The rows of memory behind those of the planes, for what a plane is squeezed to."""
INT, BOOL, ADDRESS = types.int64, types.boolean, types.uint64


class Told(NamedTuple):
    """A plan: of each plane its bits, its offset, whether it is coded, and its parts; and how words are cut."""

    ways: npt.NDArray[np.int64]
    split: int
    center: int
    kept: bool
    differences: bool


TOLD = types.NamedTuple([types.Array(INT, 2, "C"), INT, INT, BOOL, BOOL], Told)  # type: ignore[no-untyped-call]


class Memory(NamedTuple):
    """For planes and what they are squeezed to; for a frame, or lower halves that stay whole; for halves of words."""

    rows: Plane
    spare: Plane
    halves: Words


ROWS, SPARE, HALVES = given(1, 2), given(1), given(2, 2)


def fresh_memory() -> Memory:
    """For one thread at a time, since every block uses it."""
    rows, spare = np.empty((_ROWS, BLOCK_WORDS), np.uint8), np.empty(2 * BLOCK_WORDS, np.uint8)
    return Memory(rows, spare, np.empty((2, BLOCK_WORDS), np.uint16))


def knows(cut: Cut, *, differences: bool) -> bool:
    """Whether such words are cut and joined here: not those of eight bytes, which are rare, nor what nobody writes."""
    return cut.width < WHOLE_BYTES and cut.split in SPLITS and (cut.width == 1 or cut.signed == differences)


@lru_cache(1024)
def told(plan: Plan, *, differences: bool) -> Told:
    """The plan of words that are differences, or not."""
    ways, cut = np.array([(way.bits, way.offset, way.coded, way.parts) for way in plan.ways], np.int64), plan.cut
    return Told(ways, cut.split, cut.center << EXPONENT, cut.kept, differences)
