"""Words cut into planes, one for each of their bytes, and planes joined to words."""

from __future__ import annotations

import numpy as np

from ckptstore.format.codecs.layout import EXPONENT, WHOLE_BYTES, Cut
from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane, Words, word_type


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
