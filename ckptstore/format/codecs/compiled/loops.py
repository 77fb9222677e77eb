"""The same loops as in `loops`, compiled by numba: a few passes at the speed of a core's cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ckptstore.cached import cached_property
from ckptstore.format.codecs.adam_arithmetic import Kind, Prediction
from ckptstore.format.codecs.binding import Decoder, Encoder
from ckptstore.format.codecs.compiled.calls import (
    CUT,
    HALVE,
    PACK,
    SECOND,
    SQUEEZE,
    UNPACK,
    WEIGH,
    WEIGHT,
    Call,
    Loop,
    at,
    into,
)
from ckptstore.format.codecs.compiled.finding import kept, made
from ckptstore.format.codecs.compiled.plans import Memory, compiled_plan, knows
from ckptstore.format.codecs.entropy import Coders, PlaneCoder
from ckptstore.format.codecs.layout import Cut, Plan
from ckptstore.format.codecs.loops import Array, Cost, Loops
from ckptstore.format.codecs.making import Get, at_once
from ckptstore.format.codecs.parts import Source
from ckptstore.format.codecs.squeezing import NARROW, Weight
from ckptstore.format.codecs.words import Plane, Words

_COST = Cost(1.0, 0.75, 2.7, 3.3)


class CompiledLoops(Loops):
    """See `Loops`, whose own do the work of those that are not there, or not yet.

    Without `compiling` only what some process has compiled is used.
    """

    def __init__(self, array: Array, coders: Coders, get: Get = at_once, *, compiling: bool = True) -> None:
        super().__init__(array, coders, get)
        self._compiling = compiling
        self._decoder = Decoder()

    @cached_property
    def _memory(self) -> Memory:
        """Made when it is needed, since words of 8 bytes take as much elsewhere."""
        return Memory()

    def _loop(self, call: Call, *arguments: int) -> Loop | None:
        loop: Loop | None = self.get(kept, call, *arguments)
        if loop is None and self._compiling:
            loop = self.get(made, call, *arguments)
        return loop

    def _packing(self, cut: Cut) -> Loop | None:
        return self._loop(PACK, cut.width) if knows(cut, differences=cut.signed) else None

    def cost(self, cut: Cut) -> Cost:
        """See `Loops.cost`: what packs words has another that unpacks them."""
        return _COST if self._packing(cut) else super().cost(cut)

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """See `Loops.halve`."""
        if loop := self._loop(HALVE, words.itemsize):
            loop(at(words), 1 << 4 * words.itemsize - 1 if balanced else 0, into(high), into(low), len(words))
        else:
            super().halve(words, high, low, balanced=balanced)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """See `Loops.cut_fields`."""
        if loop := self._loop(CUT, split):
            loop(at(words), center, into(byte), into(others), len(words))
        else:
            super().cut_fields(words, split, center, byte, others)

    def weigh(self, plane: Plane, coder: PlaneCoder) -> list[Weight]:
        """See `Loops.weigh`."""
        if isinstance(coder, Encoder) and (loop := self._loop(WEIGH)):
            table = np.empty((1 + len(NARROW), len(Weight._fields)), np.int64)
            found = loop(coder.address, at(plane), len(plane), *self._memory.given, into(table))
            return list(map(Weight._make, table[:found].tolist()))
        return super().weigh(plane, coder)

    def squeeze(self, plane: Plane, bits: int, offset: int, common: Plane) -> tuple[Plane, Plane]:
        """See `Loops.squeeze`."""
        if loop := self._loop(SQUEEZE, bits):
            gaps, others = self.array(1, len(plane), "gaps"), self.array(1, len(plane), "others")
            found = loop(at(plane), len(plane), offset, into(common), len(common), into(gaps), into(others))
            return gaps[:found], others[:found]
        return super().squeeze(plane, bits, offset, common)

    def pack(self, plan: Plan, words: Words, out: Plane, end: int, lengths: Words) -> int:
        """See `Loops.pack`."""
        loop, coder = self._packing(plan.cut), self.coders[plan.searched]
        if loop is None or not isinstance(coder, Encoder):
            return 0
        known, memory = compiled_plan(plan, differences=plan.cut.signed), self._memory
        block, room = (at(words), len(words)), (into(out), len(out))
        given = *block, *known.given, *memory.given, *room, end, into(lengths), len(lengths)
        return loop(coder.address, *given)

    def unpack(self, plan: Plan, source: Source, words: Words, *, onto: bool) -> bool | None:
        """See `Loops.unpack`."""
        loop = self._loop(UNPACK, plan.cut.width) if knows(plan.cut, differences=onto) else None
        if loop is None:
            return None
        table = source.new_table()
        arrays = (part for array in source[:3] for part in (at(array), len(array)))
        known, memory = compiled_plan(plan, differences=onto), self._memory
        given = *arrays, source.words, into(table), len(table), *known.given, *memory.given, into(words), len(words)
        return bool(loop(self._decoder.address, *given))

    def predict(self, prediction: Prediction, bases: Sequence[Words], words: Words) -> None:
        """See `Loops.predict`."""
        call = WEIGHT if prediction.kind is Kind.WEIGHT else SECOND
        if loop := self._loop(call, prediction.number, prediction.rounding):
            loop(*map(at, bases), *prediction.factors, prediction.least, into(words), len(words))
        else:
            super().predict(prediction, bases, words)
