"""The difference to an older chunk: numbers that moved little differ in few low bits, whatever their sign.

Subtracting words as integers beats XOR, since a carry flips many bits. Signs stay where they are: equal ones cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.base import BYTES, DELTA, Form
from ckptstore.format.codecs.layout import Block, Cut, Plan
from ckptstore.format.codecs.packing import pack
from ckptstore.format.codecs.planes import width_of
from ckptstore.format.codecs.planning import planned
from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.unpacking import Unpacking
from ckptstore.format.codecs.words import Words, sampled, words_of


class Delta:
    """Differences of words to those of one base of the same length, cut into planes."""

    number = DELTA
    name = "delta"

    def plan(self, raw: memoryview, form: Form, base: memoryview) -> Plan:
        """How best to encode, and the size to expect."""
        words, before = (words_of(data, width_of(form))[0] for data in (raw, base))
        return planned(sampled(words) - sampled(before), differences(words.itemsize), onto=True)

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> Buffer:
        """Subtract, cut and code."""
        return self.encode_as(self.plan(raw, form, bases[0]), raw, bases[0])

    def encode_as(self, plan: Plan, raw: memoryview, base: memoryview) -> Buffer:
        """Subtract, cut and code as planned."""
        words, tail = words_of(raw, plan.cut.width)
        before, _ = words_of(base, plan.cut.width)

        def block(where: Block, tools: Tools) -> Words:
            found = tools.array(words.itemsize, where.stop - where.start, "block")
            return np.subtract(words[where], before[where], out=found)

        return pack(plan, len(words), block, tail)

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Join the planes and add them to the base. Raises CorruptData also for other bases."""
        if [len(base) for base in bases] != [len(out)]:
            raise CorruptData(f"a difference of {len(out)} bytes needs one base of as many")
        out[:] = bases[0]
        self.decode_onto(payload, out)

    def decode_onto(self, payload: memoryview, out: memoryview) -> None:
        """`decode` where `out` holds the base: there is no memory for it beside. Raises CorruptData."""
        Unpacking(payload, out).run(onto=True)


def differences(width: int) -> Cut:
    """How differences are cut."""
    return Cut(width, signed=width > 1)
