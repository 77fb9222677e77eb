"""The same loops as in `loops`, compiled by numba: a few passes at the speed of a core's cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
from numba import types

from ckptstore.format.codecs.adam_arithmetic import Prediction
from ckptstore.format.codecs.compiled.adam import predicting
from ckptstore.format.codecs.compiled.compiling import Loop, compiled, read
from ckptstore.format.codecs.compiled.cutting import cutting, halving
from ckptstore.format.codecs.compiled.packing import packing
from ckptstore.format.codecs.compiled.plans import Memory, fresh_memory, knows, told
from ckptstore.format.codecs.compiled.squeezing import squeezing
from ckptstore.format.codecs.compiled.unpacking import unpacking
from ckptstore.format.codecs.compiled.zstd import Decoder, Encoder
from ckptstore.format.codecs.layout import Plan
from ckptstore.format.codecs.loops import Array, Loops
from ckptstore.format.codecs.making import Get, at_once
from ckptstore.format.codecs.parts import Source
from ckptstore.format.codecs.squeezing import Counts
from ckptstore.format.codecs.words import Plane, Words


class CompiledLoops(Loops):
    """See `Loops`, whose own do the work of those that are not compiled yet."""

    def __init__(self, array: Array, get: Get = at_once) -> None:
        super().__init__(array, get)
        self._encoder, self._decoder = Encoder(), Decoder()

    @cached_property
    def _memory(self) -> Memory:
        """Made when it is needed, since words of 8 bytes take as much elsewhere."""
        return fresh_memory()

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """See `Loops.halve`."""
        if loop := self.get(halving, words.itemsize):
            loop(words, 1 << 4 * words.itemsize - 1 if balanced else 0, high, low)
        else:
            super().halve(words, high, low, balanced=balanced)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """See `Loops.cut_fields`."""
        if loop := self.get(cutting, split):
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
        if loop := self.get(squeezing, bits):
            gaps, others = self.array(1, len(plane), "gaps"), self.array(1, len(plane), "others")
            eights = np.ndarray(len(plane) // 8, "<u8", plane)
            found = loop(plane, eights, offset, common, gaps, others)
            return gaps[:found], others[:found]
        return super().squeeze(plane, bits, offset, common)

    def pack(self, plan: Plan, words: Words, out: Plane, end: int, lengths: Words) -> int:
        """See `Loops.pack`."""
        differences = plan.cut.signed
        loop = self.get(packing, plan.cut.width) if knows(plan.cut, differences=differences) else None
        if loop is None:
            return 0
        known = told(plan, differences=differences)
        ended: int = loop(self._encoder.address, words, known, *self._memory, out, end, lengths)
        return ended

    def unpack(self, plan: Plan, source: Source, words: Words, *, onto: bool) -> bool | None:
        """See `Loops.unpack`."""
        loop = self.get(unpacking, plan.cut.width) if knows(plan.cut, differences=onto) else None
        if loop is None:
            return None
        known, table = told(plan, differences=onto), source.new_table()
        done: bool = loop(self._decoder.address, *source, table, known, *self._memory, words)
        return done

    def predict(self, prediction: Prediction, bases: Sequence[Words], words: Words) -> None:
        """See `Loops.predict`."""
        if loop := self.get(predicting, prediction.kind, prediction.number, prediction.rounding):
            loop(*bases, *prediction.factors, prediction.least, words)
        else:
            super().predict(prediction, bases, words)


@cache
def _counting() -> Loop:
    def count(plane: Plane, counts: Counts) -> None:
        for place in range(plane.size):
            counts[plane[place]] += 1

    return compiled(count, types.void(read(1), types.intp[::1]))
