"""Adam's own arithmetic in one compiled pass, with the operations of `adam_arithmetic` in their order.

numba contracts none of them and takes none for associative unless it is told to; so the same bits come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.adam_arithmetic import SMALL, Number, Rounding
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, read
from ckptstore.format.codecs.words import Words, word_type

_FLOAT, _BITS = np.float32, np.uint32
_SQUARE = _FLOAT(SMALL**2)


def weight(number: Number, rounding: Rounding) -> Helper:
    """What fills words from three bases, with the factors, and the least number that is sure."""
    loop, word = _predicting(_weight, 4, number, rounding), word_type(number.width).type

    def entry(
        old: Any, first: Any, second: Any, kept: Any, size: Any, root: Any, eps: Any, least: Any, words: Any, count: int
    ) -> int:
        bases = array_at(old, count, word), array_at(first, count, word), array_at(second, count, word)
        loop(*bases, kept, size, root, eps, least, array_at(words, count, word))
        return 0

    return entry


def second(number: Number, rounding: Rounding) -> Helper:
    """The same of a second moment."""
    loop, word = _predicting(_second, 3, number, rounding), word_type(number.width).type

    def entry(
        old: Any, before: Any, after: Any, kept: Any, share: Any, added: Any, least: Any, words: Any, count: int
    ) -> int:
        bases = array_at(old, count, word), array_at(before, count, word), array_at(after, count, word)
        loop(*bases, kept, share, added, least, array_at(words, count, word))
        return 0

    return entry


def _predicting(make: Callable[..., Helper], factors: int, number: Number, rounding: Rounding) -> Helper:
    single = types.float32
    if number is Number.FLOAT32:
        wide, last = helping(_from_float32, single(types.uint32)), helping(_same, single(single))
    else:
        wide, last = helping(_from_bfloat16, single(types.uint16)), helping(_to_bfloat16, single(single))
    between = last if rounding is Rounding.EACH else helping(_same, single(single))
    loop = make(wide, between, last, word_type(number.width).type, _BITS(8 * (4 - number.width)))
    bases, numbers = [read(number.width)] * 3, [single] * (factors + 1)
    return helping(loop, types.void(*bases, *numbers, given(number.width)))


def _weight(wide: Helper, between: Helper, last: Helper, word: Any, behind: np.uint32) -> Helper:
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


def _second(wide: Helper, between: Helper, last: Helper, word: Any, behind: np.uint32) -> Helper:
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
