"""The same loops as in `loops`, compiled by numba: a few passes at the speed of a core's cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import types

from ckptstore.format.codecs.adam_arithmetic import Prediction
from ckptstore.format.codecs.compiled_adam import predicting
from ckptstore.format.codecs.compiled_unpacking import CompiledUnpacking, knows, unpacking
from ckptstore.format.codecs.compiling import Loop, compiled, given, kind, read
from ckptstore.format.codecs.layout import Plan
from ckptstore.format.codecs.loops import Array, Loops
from ckptstore.format.codecs.making import Get, at_once
from ckptstore.format.codecs.parts import Source
from ckptstore.format.codecs.squeezing import FAR, POWERS, Counts, per_byte
from ckptstore.format.codecs.words import Plane, Words, word_type

_FAR, _POWERS = FAR, len(POWERS)
_BYTE, _WORD = np.uint8, np.uint16
_LINE = 128
_LOWS, _TOPS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)


class CompiledLoops(Loops):
    """See `Loops`, whose own do the work of those that are not compiled yet."""

    def __init__(self, array: Array, get: Get = at_once) -> None:
        super().__init__(array, get)
        self._unpacking = CompiledUnpacking()

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """See `Loops.halve`."""
        if loop := self.get(_halving, words.itemsize):
            loop(words, 1 << 4 * words.itemsize - 1 if balanced else 0, high, low)
        else:
            super().halve(words, high, low, balanced=balanced)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """See `Loops.cut_fields`."""
        if loop := self.get(_cutting, split):
            loop(words, center, byte, others)
        else:
            super().cut_fields(words, split, center, byte, others)

    def count(self, plane: Plane) -> Counts:
        """See `Loops.count`."""
        if loop := self.get(_counting):
            counts = np.zeros(256, np.intp)
            loop(plane, counts)
            return counts
        return super().count(plane)

    def squeeze(self, plane: Plane, bits: int, offset: int, common: Plane) -> tuple[Plane, Plane]:
        """See `Loops.squeeze`."""
        if loop := self.get(_squeezing, bits):
            gaps, others = self.array(1, len(plane), "gaps"), self.array(1, len(plane), "others")
            eights = np.ndarray(len(plane) // 8, "<u8", plane)
            found = loop(plane, eights, offset, common, gaps, others)
            return gaps[:found], others[:found]
        return super().squeeze(plane, bits, offset, common)

    def unpack(self, plan: Plan, source: Source, words: Words, *, onto: bool) -> bool:
        """See `Loops.unpack`, which tells of damage."""
        loop = self.get(unpacking, plan.cut.width) if knows(plan.cut, onto=onto) else None
        return loop is not None and self._unpacking.unpack(loop, plan, source, words, onto=onto)

    def predict(self, prediction: Prediction, bases: Sequence[Words], words: Words) -> None:
        """See `Loops.predict`."""
        if loop := self.get(predicting, prediction.kind, prediction.number, prediction.rounding):
            loop(*bases, *prediction.factors, prediction.least, words)
        else:
            super().predict(prediction, bases, words)


@cache
def _halving(width: int) -> Loop:
    word, half, shift = word_type(width).type, given(width // 2), 4 * width

    def halve(words: Words, bias: int, high: Words, low: Words) -> None:
        for place in range(words.size):
            low[place] = words[place]
            high[place] = word(words[place] + bias) >> shift

    return compiled(halve, types.void(read(width), kind(width), half, half))


@cache
def _cutting(split: int) -> Loop:
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def cut(words: Words, center: int, byte: Plane, others: Plane) -> None:
        for place in range(words.size):
            word = _WORD(words[place] - center)
            byte[place] = word >> split
            others[place] = (word & behind) | (word >> 8 & before)

    return compiled(cut, types.void(read(2), kind(2), given(1), given(1)))


@cache
def _counting() -> Loop:
    def count(plane: Plane, counts: Counts) -> None:
        for place in range(plane.size):
            counts[plane[place]] += 1

    return compiled(count, types.void(read(1), types.intp[::1]))


@cache
def _squeezing(bits: int) -> Loop:
    """Others are looked for by lines, and in those that have any by eights: mostly there are none."""
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)
    far, fars = _BYTE(0x100 - (1 << bits)), np.uint64((0x100 - (1 << bits)) * 0x0101010101010101)

    def squeeze(plane: Plane, eights: Words, offset: int, common: Plane, gaps: Plane, others: Plane) -> int:
        for place in range(places):
            part = plane[place * common.size : (place + 1) * common.size]
            for at in range(part.size):
                near = _BYTE(_BYTE(_BYTE(part[at] - offset) & mask) << _BYTE(bits * place))
                common[at] = common[at] | near if place else near
        offsets = np.uint64(offset) * np.uint64(0x0101010101010101)
        told, last = 0, 0
        for line in range(0, plane.size, _LINE):
            found = _BYTE(0)
            part = plane[line : line + _LINE]
            for at in range(part.size):
                found = _BYTE(found | _BYTE(_BYTE(part[at] - offset) & far))
            if not found:
                continue
            for group in range(line // 8, min(line // 8 + _LINE // 8, eights.size + 1)):
                if group < eights.size:
                    eight = eights[group]
                    moved = ((eight | _TOPS) - (offsets & _LOWS)) ^ ((eight ^ ~offsets) & _TOPS)
                    if not moved & fars:
                        continue
                for place in range(8 * group, min(8 * group + 8, plane.size)):
                    if _BYTE(plane[place] - offset) & far:
                        for power in range(_POWERS - 1 if place - last >= _FAR else -1, -1, -1):
                            if place - last >= _FAR << power:
                                last += _FAR << power
                                gaps[told], others[told] = _FAR + power, plane[last]
                                told += 1
                        gaps[told], others[told] = place - last, plane[place]
                        told += 1
                        last = place
        return told

    return compiled(squeeze, types.intp(read(1), read(8), kind(1), given(1), given(1), given(1)))
