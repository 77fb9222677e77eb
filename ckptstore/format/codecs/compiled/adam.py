"""Adam's own arithmetic in one compiled pass, with the operations of `adam_arithmetic` in their order.

numba contracts none of them and takes none for associative unless it is told to; so the same bits come out.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.adam_arithmetic import SMALL, Kind, Number, Rounding
from ckptstore.format.codecs.compiled.compiling import Loop, compiled, given, helping, read
from ckptstore.format.codecs.words import Words, word_type

_FLOAT, _BITS = np.float32, np.uint32
_SQUARE = _FLOAT(SMALL**2)
_FACTORS = {Kind.WEIGHT: 4, Kind.SECOND: 3}


@cache
def predicting(kind: Kind, number: Number, rounding: Rounding) -> Loop:
    """A loop over three bases, with the factors, the least number that is sure, and the words to fill."""
    single = types.float32
    if number is Number.FLOAT32:
        wide, last = helping(_from_float32, single(types.uint32)), helping(_same, single(single))
    else:
        wide, last = helping(_from_bfloat16, single(types.uint16)), helping(_to_bfloat16, single(single))
    between = last if rounding is Rounding.EACH else helping(_same, single(single))
    make = _weight if kind is Kind.WEIGHT else _second
    loop = make(wide, between, last, word_type(number.width).type, _BITS(8 * (4 - number.width)))
    bases, numbers = [read(number.width)] * 3, [single] * (_FACTORS[kind] + 1)
    return compiled(loop, types.void(*bases, *numbers, given(number.width)))


def _weight(wide: Loop, between: Loop, last: Loop, word: Any, behind: np.uint32) -> Loop:
    def loop(
        old: Words,
        first: Words,
        second: Words,
        kept: np.float32,
        size: np.float32,
        root: np.float32,
        eps: np.float32,
        least: np.float32,
        words: Words,
    ) -> None:
        for place in range(words.size):
            square = wide(second[place])
            square = _FLOAT(square * _FLOAT(square >= _SQUARE))
            divisor = between(_FLOAT(between(_FLOAT(between(_FLOAT(math.sqrt(square))) / root)) + eps))
            moved = _FLOAT(_FLOAT(size * wide(first[place])) / divisor)
            found = last(_FLOAT(between(_FLOAT(wide(old[place]) * kept)) + moved))
            words[place] = word(_FLOAT(found).view(_BITS) >> behind) if abs(found) >= least else old[place]

    return loop


def _second(wide: Loop, between: Loop, last: Loop, word: Any, behind: np.uint32) -> Loop:
    def loop(
        old: Words,
        before: Words,
        after: Words,
        kept: np.float32,
        share: np.float32,
        added: np.float32,
        least: np.float32,
        words: Words,
    ) -> None:
        for place in range(words.size):
            past = wide(before[place])
            gradient = _FLOAT(_FLOAT(_FLOAT(wide(after[place]) - past) / share) + past)
            grown = _FLOAT(_FLOAT(added * gradient) * gradient)
            found = last(_FLOAT(between(_FLOAT(wide(old[place]) * kept)) + grown))
            words[place] = word(_FLOAT(found).view(_BITS) >> behind) if abs(found) >= least else old[place]

    return loop


def _same(value: np.float32) -> np.float32:
    return _FLOAT(value)


def _from_float32(word: np.uint32) -> np.float32:
    return _BITS(word).view(_FLOAT)


def _from_bfloat16(word: np.uint16) -> np.float32:
    return _BITS(_BITS(word) << _BITS(16)).view(_FLOAT)


def _to_bfloat16(value: np.float32) -> np.float32:
    """Rounded to the nearest, ties to even."""
    bits = _FLOAT(value).view(_BITS)
    odd = _BITS((bits >> _BITS(16)) & _BITS(1))
    return _BITS(_BITS(bits + _BITS(0x7FFF) + odd) & _BITS(0xFFFF0000)).view(_FLOAT)
