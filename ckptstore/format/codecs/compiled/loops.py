"""The same loops as in `loops`, compiled by numba: a few passes at the speed of a core's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from ckptstore.format.codecs.adam_arithmetic import Kind, Prediction
from ckptstore.format.codecs.compiled.calls import (
    COUNT,
    CUT,
    HALVE,
    PACK,
    SECOND,
    SQUEEZE,
    UNPACK,
    WEIGHT,
    Call,
    Loop,
    at,
)
from ckptstore.format.codecs.compiled.finding import made
from ckptstore.format.codecs.compiled.plans import Memory, knows, told
from ckptstore.format.codecs.compiled.zstd import Decoder, Encoder
from ckptstore.format.codecs.layout import Plan
from ckptstore.format.codecs.loops import Array, Loops
from ckptstore.format.codecs.making import Get, at_once
from ckptstore.format.codecs.parts import Source
from ckptstore.format.codecs.squeezing import Counts
from ckptstore.format.codecs.words import Plane, Words

Find = Callable[..., Loop | None]
"""Finds the loop of a `Call` for some arguments, if there is one."""


class CompiledLoops(Loops):
    """See `Loops`, whose own do the work of those that are not there, or not yet."""

    def __init__(self, array: Array, get: Get = at_once, find: Find = made) -> None:
        super().__init__(array, get)
        self._find = find
        self._encoder, self._decoder = Encoder(), Decoder()

    @cached_property
    def _memory(self) -> Memory:
        """Made when it is needed, since words of 8 bytes take as much elsewhere."""
        return Memory()

    def _loop(self, call: Call, *arguments: int) -> Loop | None:
        loop: Loop | None = self.get(self._find, call, *arguments)
        return loop

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """See `Loops.halve`."""
        if loop := self._loop(HALVE, words.itemsize):
            loop(at(words), 1 << 4 * words.itemsize - 1 if balanced else 0, at(high), at(low), len(words))
        else:
            super().halve(words, high, low, balanced=balanced)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """See `Loops.cut_fields`."""
        if loop := self._loop(CUT, split):
            loop(at(words), center, at(byte), at(others), len(words))
        else:
            super().cut_fields(words, split, center, byte, others)

    def count(self, plane: Plane) -> Counts:
        """See `Loops.count`."""
        if loop := self._loop(COUNT):
            counts = np.zeros(256, np.intp)
            loop(at(plane), len(plane), at(counts))
            return counts
        return super().count(plane)

    def squeeze(self, plane: Plane, bits: int, offset: int, common: Plane) -> tuple[Plane, Plane]:
        """See `Loops.squeeze`."""
        if loop := self._loop(SQUEEZE, bits):
            gaps, others = self.array(1, len(plane), "gaps"), self.array(1, len(plane), "others")
            found = loop(at(plane), len(plane), offset, at(common), len(common), at(gaps), at(others))
            return gaps[:found], others[:found]
        return super().squeeze(plane, bits, offset, common)

    def pack(self, plan: Plan, words: Words, out: Plane, end: int, lengths: Words) -> int:
        """See `Loops.pack`."""
        differences = plan.cut.signed
        loop = self._loop(PACK, plan.cut.width) if knows(plan.cut, differences=differences) else None
        if loop is None:
            return 0
        known, memory = told(plan, differences=differences).given, self._memory.given
        block, room = (at(words), len(words)), (at(out), len(out))
        return loop(self._encoder.address, *block, *known, *memory, *room, end, at(lengths), len(lengths))

    def unpack(self, plan: Plan, source: Source, words: Words, *, onto: bool) -> bool | None:
        """See `Loops.unpack`."""
        loop = self._loop(UNPACK, plan.cut.width) if knows(plan.cut, differences=onto) else None
        if loop is None:
            return None
        table = source.new_table()
        arrays = (part for array in source[:3] for part in (at(array), len(array)))
        known, memory = told(plan, differences=onto).given, self._memory.given
        lying = *arrays, source.words, at(table), len(table)
        return bool(loop(self._decoder.address, *lying, *known, *memory, at(words), len(words)))

    def predict(self, prediction: Prediction, bases: Sequence[Words], words: Words) -> None:
        """See `Loops.predict`."""
        call = WEIGHT if prediction.kind is Kind.WEIGHT else SECOND
        if loop := self._loop(call, prediction.number, prediction.rounding):
            loop(*map(at, bases), *prediction.factors, prediction.least, at(words), len(words))
        else:
            super().predict(prediction, bases, words)
