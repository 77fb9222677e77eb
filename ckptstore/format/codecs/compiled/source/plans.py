"""The arguments of packing and unpacking, and the memory they work in, as numba's types."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.plans import ROWS, CompiledPlan
from ckptstore.format.codecs.compiled.source.compiling import array_at, given
from ckptstore.format.codecs.words import BLOCK_WORDS

INT, BOOL, ADDRESS = types.int64, types.boolean, types.uint64
_WAYS = types.Array(INT, 2, "C", aligned=False)
PLAN = types.NamedTuple([_WAYS, INT, INT, BOOL, BOOL], CompiledPlan)  # type: ignore[no-untyped-call]
NUMBERS = types.Array(INT, 1, "C", aligned=False)
MEMORY = given(1, 2), given(1), given(2, 2)


@numba.njit
def plan_at(ways: Any, planes: int, split: int, center: int, kept: int, differences: int) -> Any:
    """What `CompiledPlan.given` stands for."""
    return CompiledPlan(array_at(ways, (planes, 4), np.int64), split, center, kept != 0, differences != 0)


@numba.njit
def memory_at(rows: Any, spare: Any, halves: Any) -> Any:
    """What `Memory.given` stands for."""
    return (
        array_at(rows, (ROWS, BLOCK_WORDS), np.uint8),
        array_at(spare, 2 * BLOCK_WORDS, np.uint8),
        array_at(halves, (2, BLOCK_WORDS), np.uint16),
    )
