"""Each byte of the numbers apart: exponents and high bytes shrink, mantissas stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.base import BYTES, PLANES, Form
from ckptstore.format.codecs.layout import Cut, Plan
from ckptstore.format.codecs.packing import pack
from ckptstore.format.codecs.planning import centered, planned
from ckptstore.format.codecs.unpacking import Unpacking
from ckptstore.format.codecs.words import WIDTHS, sampled, words_of

_MANTISSA = 7
_LITTLE = 1.02  # dearer, but a plane less to code: among bytes, signs that are all the same need none


class Planes:
    """The words of a chunk, cut into planes: those of floats into exponents and the rest."""

    number = PLANES
    name = "planes"

    @staticmethod
    def sample(raw: memoryview, form: Form) -> bytes:
        """Short runs of words from all over the chunk."""
        return sampled(words_of(raw, width_of(form))[0]).tobytes()

    def plans(self, sample: bytes, form: Form, *, thorough: bool = False) -> list[Plan]:
        """How best to encode, and the sizes to expect; several where size counts more than time."""
        words, _ = words_of(memoryview(sample), width_of(form))
        if not form.floating or words.itemsize == 1:
            return [planned(words, Cut(words.itemsize))]
        fields = planned(words, Cut(words.itemsize, split=_MANTISSA))
        alike = [planned(words, Cut(words.itemsize))] if fields.ways[1].coded else []  # signs that may all be the same
        usual = alike[0] if alike and alike[0].share < _LITTLE * fields.share else fields
        others = [fields, centered(words, fields), *alike] if thorough else []
        return [usual, *(plan for plan in others if plan is not usual)]

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> Buffer:
        """Cut and code."""
        return self.encode_as(self.plans(self.sample(raw, form), form)[0], raw)

    def encode_as(self, plan: Plan, raw: memoryview) -> Buffer:
        """Cut and code as planned."""
        words, tail = words_of(raw, plan.cut.width)
        return pack(plan, len(words), lambda where, _: words[where], tail)

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Join the planes straight into `out`."""
        Unpacking(payload, out).run()


def width_of(form: Form) -> int:
    """The words to cut; numbers of an uncommon width are bytes."""
    return form.width if form.width in WIDTHS else 1
