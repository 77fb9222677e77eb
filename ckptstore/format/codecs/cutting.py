"""Words cut into planes, one for each of their bytes, and planes joined to words.

Cutting goes by halves: casts and shifts of whole arrays are several times as fast as copies with a stride. numpy casts
within an operation more slowly than before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane, Words, signed, word_type

WHOLE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cut:
    """How words of `width` bytes are cut.

    The first 16 bits of a word are cut into the eight from bit `split` on, bit 0 being the last, and the eight others:
    by 7, a float's exponent is one byte, and its sign and the first of its mantissa are the other; by 3, a byte is what
    varies of an exponent from which `center` is subtracted before, and what is not even of the mantissa.

    `kept`: the lower halves of the words stay whole and are one plane. `signed`: lower halves are signed numbers, and
    so are bytes, so that words near 0 on either side have zeros in front.
    """

    width: int
    split: int = WHOLE_BYTES
    center: int = 0
    kept: bool = False
    signed: bool = False

    @property
    def sizes(self) -> list[int]:
        """Bytes a word has in each plane, the first bytes of the words first."""
        half = self.width // 2
        return [1] * half + [half] if self.kept else [1] * self.width

    @property
    def rest(self) -> int:
        """The bits of the second byte that lie behind the first one; the others lie before it."""
        return (1 << self.split) - 1


class Cutter:
    """Cuts and joins blocks of words, in memory that every block uses anew."""

    def __init__(self, cut: Cut, tools: Tools) -> None:
        self._cut, self._tools = cut, tools

    def cut(self, words: Words) -> list[Plane]:
        """The planes; they stay until the next call, or share memory with `words`."""
        return self._split(words, 1, first=True, kept=self._cut.kept)

    def _split(self, words: Words, place: int, *, first: bool = False, kept: bool = False) -> list[Plane]:
        width, count = words.itemsize, len(words)
        if width == 1:
            return [words]
        low, high = (self._place(width // 2, count, half) for half in (2 * place, 2 * place + 1))
        if first and width == 2 and self._cut.split < WHOLE_BYTES:
            self._split_fields(words, high, low)
            return [high, low]
        spare = self._tools.array(width, count, "spare")
        np.copyto(low, words, casting="unsafe")
        if self._cut.signed:
            words = np.add(words, 1 << 4 * width - 1, out=spare)  # carries into the upper half what the lower one lacks
        np.right_shift(words, 4 * width, out=spare)
        np.copyto(high, spare, casting="unsafe")
        lower = [low.view(np.uint8)] if kept else self._split(low, 2 * place)
        return self._split(high, 2 * place + 1, first=first) + lower

    def _split_fields(self, words: Words, byte: Plane, others: Plane) -> None:
        spare, upper = self._tools.array(2, len(words), "spare"), self._tools.array(1, len(words), "spare")
        if self._cut.center:
            words = np.subtract(words, self._cut.center << 7, out=self._tools.array(2, len(words), "centered"))
        np.right_shift(words, self._cut.split, out=spare)
        np.copyto(byte, spare, casting="unsafe")
        np.right_shift(words, 8, out=spare)
        np.copyto(upper, spare, casting="unsafe")
        np.bitwise_and(upper, 0xFF - self._cut.rest, out=upper)
        np.copyto(others, words, casting="unsafe")
        np.bitwise_and(others, self._cut.rest, out=others)
        np.bitwise_or(others, upper, out=others)

    def join(self, planes: list[Plane], words: Words) -> None:
        """Fill `words`, which were cut into `planes`."""
        if self._cut.width == 1:
            np.copyto(words, planes[0])
        else:
            self._merge(planes, words, 1, first=True, kept=self._cut.kept)

    def _merge(self, planes: list[Plane], out: Words, place: int, *, first: bool = False, kept: bool = False) -> None:
        half, spare = out.itemsize // 2, self._tools.array(out.itemsize, len(out), "spare")
        if first and half == 1 and self._cut.split < WHOLE_BYTES:
            self._merge_fields(planes[0], planes[1], out, spare)
            return
        low = planes[half].view(word_type(half)) if kept else self._half(planes[half:], len(out), 2 * place)
        np.copyto(out, self._half(planes[:half], len(out), 2 * place + 1, first=first))
        np.left_shift(out, 8 * half, out=out)
        if self._cut.signed:
            np.copyto(signed(spare), signed(low))
        else:
            np.copyto(spare, low)
        np.add(out, spare, out=out)

    def _merge_fields(self, byte: Plane, others: Plane, out: Words, spare: Words) -> None:
        np.copyto(out, byte)
        np.multiply(out, 1 << self._cut.split, out=out)
        if self._cut.split == WHOLE_BYTES - 1:  # a sign alone lies before: it is extended faster than copied
            np.copyto(signed(spare), signed(others))
        else:
            np.copyto(spare, others)
            np.multiply(spare, 0x101, out=spare)
        np.bitwise_and(spare, (0xFF - self._cut.rest) << 8 | self._cut.rest, out=spare)
        np.bitwise_or(out, spare, out=out)
        if self._cut.center:
            np.add(out, self._cut.center << 7, out=out)

    def _half(self, planes: list[Plane], count: int, place: int, *, first: bool = False) -> Words:
        if len(planes) == 1:
            return planes[0]
        out = self._place(len(planes), count, place)
        self._merge(planes, out, place, first=first)
        return out

    def _place(self, width: int, count: int, place: int) -> Words:
        return self._tools.array(width, count, f"place {place}")
