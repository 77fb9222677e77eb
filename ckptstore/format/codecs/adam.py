"""Codec 4: what Adam computed is computed again, and only what that misses is stored.

::

    header      kind, number, rounding (u8 each), 5 zeros, the coefficients of the kind (f64 each)
    difference  of the words to those predicted from the bases, as `layout` has it
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.adam_arithmetic import Kind, Number, Prediction, Rounding
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.format.codecs.base import BYTES, Form, NoGain
from ckptstore.format.codecs.delta import differences
from ckptstore.format.codecs.layout import Block, Plan, blocks_of
from ckptstore.format.codecs.packing import pack
from ckptstore.format.codecs.planning import planned
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.unpacking import Unpacking
from ckptstore.format.codecs.words import Words, sampled, words_of

_HEADERS = {Kind.WEIGHT: struct.Struct("<BBB5x4d"), Kind.SECOND: struct.Struct("<BBB5x2d")}
_BASES = 3
_WORTH = 0.5


@dataclass(frozen=True, slots=True)
class Adam:
    """Weights, or second moments, as what a step of Adam made of other chunks.

    Attributes:
        kind: what is encoded. Decoding needs neither this nor `steps`.
        steps: what that step may have been; the one that fits best is taken.
    """

    kind: Kind = Kind.WEIGHT
    steps: Sequence[Step] = ()

    number = 4
    name = "adam"

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> bytes:
        """The header and residual of the best prediction, decoded once to be sure. Raises NoGain."""
        options = [option for step in self.steps for option in step.predictions(self.kind)]
        options = [option for option in options if _fits(option, raw, bases)]
        if not options:
            raise NoGain
        plan, prediction = _best(options, raw, bases)
        if plan.share >= _WORTH:
            raise NoGain
        payload = _encoded(plan, prediction, raw, bases)
        again = bytearray(len(raw))
        self.decode(memoryview(payload), memoryview(again), bases)
        if again != raw or len(payload) >= _WORTH * len(raw):
            raise NoGain
        return payload

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Predict and correct. Raises CorruptData when the header, the residual or the bases do not fit."""
        prediction, missed = _opened(payload)
        if not _fits(prediction, out, bases):
            raise CorruptData(f"an adam payload for {len(out)} bytes has bases of {[len(base) for base in bases]}")

        unpacking = Unpacking(missed, out)
        if unpacking.width != prediction.number.width:
            raise CorruptData("an adam payload holds differences of another width than its numbers")
        words, _ = words_of(out, unpacking.width)
        with borrowed() as tools:
            for where in blocks_of(len(words)):
                tools.loops.predict(prediction, _blocks(prediction, bases, where), words[where])
        unpacking.run(onto=True)


def _opened(payload: memoryview) -> tuple[Prediction, memoryview]:
    try:
        header = _HEADERS[Kind(payload[0])]
        kind, number, rounding, *coefficients = header.unpack_from(payload)
        prediction = Prediction(Kind(kind), Number(number), Rounding(rounding), tuple(coefficients))
    except (IndexError, struct.error, ValueError) as error:
        raise CorruptData(f"an adam payload does not decode: {error}") from error
    if not prediction.usable:
        raise CorruptData(f"an adam payload has coefficients that none is written with: {coefficients}")
    return prediction, payload[header.size :]


def _fits(prediction: Prediction, raw: memoryview, bases: Sequence[memoryview]) -> bool:
    return len(raw) >= prediction.number.width and [len(base) for base in bases] == [len(raw)] * _BASES


def _best(options: Sequence[Prediction], raw: memoryview, bases: Sequence[memoryview]) -> tuple[Plan, Prediction]:
    """The option that leaves least to say of a sample, and how that is best coded."""
    plans = []
    for option in options:
        words, *others = (sampled(words_of(data, option.number.width)[0]) for data in (raw, *bases))
        plans.append(planned(words - option.words(others), differences(words.itemsize)))
    return min(zip(plans, options, strict=True), key=lambda pair: pair[0].share)


def _encoded(plan: Plan, prediction: Prediction, raw: memoryview, bases: Sequence[memoryview]) -> bytes:
    words, tail = words_of(raw, prediction.number.width)

    def missed(where: Block, tools: Tools) -> Words:
        found = tools.array(words.itemsize, where.stop - where.start, "block")
        tools.loops.predict(prediction, _blocks(prediction, bases, where), found)
        return np.subtract(words[where], found, out=found)

    fields = prediction.kind, prediction.number, prediction.rounding, *prediction.coefficients
    return _HEADERS[prediction.kind].pack(*fields) + pack(plan, len(words), missed, tail)


def _blocks(prediction: Prediction, bases: Sequence[memoryview], where: Block) -> list[Words]:
    return [words_of(base, prediction.number.width)[0][where] for base in bases]
