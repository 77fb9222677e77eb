"""Words cut into halves and fields, compiled; see `loops`."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.compiling import Loop, compiled, given, kind, read
from ckptstore.format.codecs.words import Plane, Words, word_type

_WORD = np.uint16


@cache
def halving(width: int) -> Loop:
    """Cuts words into upper and lower halves, with a bias for the upper ones."""
    word, half, shift = word_type(width).type, given(width // 2), 4 * width

    def halve(words: Words, bias: int, high: Words, low: Words) -> None:
        for place in range(words.size):
            low[place] = words[place]
            high[place] = word(words[place] + bias) >> shift

    return compiled(halve, types.void(read(width), kind(width), half, half))


@cache
def cutting(split: int) -> Loop:
    """Cuts words of 16 bits into eight bits from `split` on, and the others."""
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def cut(words: Words, center: int, byte: Plane, others: Plane) -> None:
        for place in range(words.size):
            word = _WORD(words[place] - center)
            byte[place] = word >> split
            others[place] = (word & behind) | (word >> 8 & before)

    return compiled(cut, types.void(read(2), kind(2), given(1), given(1)))
