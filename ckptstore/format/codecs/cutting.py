"""Words cut into planes, one for each of their bytes, and planes joined to words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane, Words, word_type

WHOLE_BYTES = 8
EXPONENT = 7
"""The bit where the exponent of a bfloat16 and of a float32 begins, of their first 16."""


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
            self._tools.loops.cut_fields(words, self._cut.split, self._cut.center << EXPONENT, high, low)
            return [high, low]
        self._tools.loops.halve(words, high, low, balanced=self._cut.signed)
        lower = [low.view(np.uint8)] if kept else self._split(low, 2 * place)
        return self._split(high, 2 * place + 1, first=first) + lower

    def join(self, planes: list[Plane], words: Words, *, onto: bool = False) -> None:
        """Fill `words` with what was cut into `planes`, or add it to them."""
        width = words.itemsize
        if onto and (width == 1 or (width == 2 and self._cut.split < WHOLE_BYTES)):
            joined = self._tools.array(width, len(words), "joined")
            self.join(planes, joined)
            np.add(words, joined, out=words)
        elif width == 1:
            np.copyto(words, planes[0])
        else:
            self._merge(planes, words, 1, first=True, kept=self._cut.kept, onto=onto)

    def _merge(
        self,
        planes: list[Plane],
        out: Words,
        place: int,
        *,
        first: bool = False,
        kept: bool = False,
        onto: bool = False,
    ) -> None:
        half = out.itemsize // 2
        if first and half == 1 and self._cut.split < WHOLE_BYTES:
            center = self._cut.center << EXPONENT
            self._tools.loops.join_fields(planes[0], planes[1], self._cut.split, center, out)
            return
        low = planes[half].view(word_type(half)) if kept else self._half(planes[half:], len(out), 2 * place)
        high = self._half(planes[:half], len(out), 2 * place + 1, first=first)
        self._tools.loops.join(high, low, out, balanced=self._cut.signed, onto=onto)

    def _half(self, planes: list[Plane], count: int, place: int, *, first: bool = False) -> Words:
        if len(planes) == 1:
            return planes[0]
        out = self._place(len(planes), count, place)
        self._merge(planes, out, place, first=first)
        return out

    def _place(self, width: int, count: int, place: int) -> Words:
        return self._tools.array(width, count, f"place {place}")
