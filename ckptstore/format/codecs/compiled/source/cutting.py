"""Words cut into halves and fields, compiled; see `loops`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, kind, read
from ckptstore.format.codecs.words import Plane, Words, word_type

_WORD = np.uint16


@cache
def halver(width: int) -> Helper:
    """Cuts words into upper and lower halves, with a bias for the upper ones."""
    word, half, shift = word_type(width).type, given(width // 2), 4 * width

    def halve(words: Words, bias: int, high: Words, low: Words) -> None:
        for place in range(words.size):
            low[place] = words[place]
            high[place] = word(words[place] + bias) >> shift

    return helping(halve, types.void(read(width), kind(width), half, half))


@cache
def cutter(split: int) -> Helper:
    """Cuts words of 16 bits into eight bits from `split` on, and the others."""
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def cut(words: Words, center: int, byte: Plane, others: Plane) -> None:
        for place in range(words.size):
            word = _WORD(words[place] - center)
            byte[place] = word >> split
            others[place] = (word & behind) | (word >> 8 & before)

    return helping(cut, types.void(read(2), kind(2), given(1), given(1)))


def halving(width: int) -> Helper:
    """What halves `count` words."""
    halve, word, half = halver(width), word_type(width).type, word_type(width // 2).type

    def entry(words: Any, bias: int, high: Any, low: Any, count: int) -> int:
        halve(array_at(words, count, word), bias, array_at(high, count, half), array_at(low, count, half))
        return 0

    return entry


def cutting(split: int) -> Helper:
    """What cuts `count` words."""
    cut = cutter(split)

    def entry(words: Any, center: int, byte: Any, others: Any, count: int) -> int:
        cut(array_at(words, count, _WORD), center, array_at(byte, count, np.uint8), array_at(others, count, np.uint8))
        return 0

    return entry
