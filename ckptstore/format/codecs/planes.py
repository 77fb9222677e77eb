"""Each byte of the numbers apart: exponents and high bytes shrink, mantissas stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.format.codecs.base import BYTES, Buffer, Form
from ckptstore.format.codecs.planar import Block, Plan, pack, unpack
from ckptstore.format.codecs.planning import planned
from ckptstore.format.codecs.words import WIDTHS, Words, sampled, words_of


class Planes:
    """The words of a chunk, cut into planes; those of floats are rotated."""

    number = 2
    name = "planes"

    def plan(self, raw: memoryview, form: Form) -> Plan:
        """How best to encode, and the size to expect."""
        words, _ = words_of(raw, width_of(form))
        return planned(sampled(words), rotated=form.floating and words.itemsize > 1)

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> Buffer:
        """Cut and code."""
        return self.encode_as(self.plan(raw, form), raw)

    def encode_as(self, plan: Plan, raw: memoryview) -> Buffer:
        """Cut and code as planned."""
        words, tail = words_of(raw, plan.cut.width)
        return pack(plan, len(words), words.__getitem__, tail)

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Join the planes straight into `out`."""
        unpack(payload, out, _leave)


def width_of(form: Form) -> int:
    """The words to cut; numbers of an uncommon width are bytes."""
    return form.width if form.width in WIDTHS else 1


def _leave(_where: Block, _words: Words, _spare: Words) -> None:
    """Planes hold the words themselves."""
