"""Words cut into planes, one for each of their bytes, and planes joined to words.

Cutting goes by halves: casts and shifts of whole arrays are several times as fast as copies with a stride.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane, Words, rotate, word_type


@dataclass(frozen=True, slots=True)
class Cut:
    """How words of `width` bytes are cut.

    `center` is subtracted from the exponents of the floats whose first 16 bits are a sign, 8 bits of exponent, and 7 of
    mantissa. Then the first 16 bits are rotated by `rotation`: by 1, so that the sign comes behind an exponent that is
    one byte; by 5, so that a byte is what varies of a centered exponent, and what is not even of its mantissa. `kept`:
    the lower halves of the words stay whole and are one plane.
    """

    width: int
    rotation: int = 0
    center: int = 0
    kept: bool = False

    @property
    def sizes(self) -> list[int]:
        """Bytes a word has in each plane, the first bytes of the words first."""
        half = self.width // 2
        return [1] * half + [half] if self.kept else [1] * self.width


class Cutter:
    """Cuts and joins blocks of words, in memory that every block uses anew."""

    def __init__(self, cut: Cut, tools: Tools) -> None:
        self._cut, self._tools = cut, tools

    def cut(self, words: Words) -> list[Plane]:
        """The planes; they stay until the next call, or share memory with `words`."""
        return self._split(words, 1, turned=True, kept=self._cut.kept)

    def _split(self, words: Words, place: int, *, turned: bool = False, kept: bool = False) -> list[Plane]:
        width, count = words.itemsize, len(words)
        if width == 1:
            return [words]
        spare = self._tools.array(width, count, "spare")
        if turned and width == 2 and self._cut.rotation:
            words = self._turned(words, self._place(width, count, place), spare)
        low, high = (self._place(width // 2, count, half) for half in (2 * place, 2 * place + 1))
        np.copyto(low, words, casting="unsafe")
        np.right_shift(words, 4 * width, out=spare)
        np.copyto(high, spare, casting="unsafe")
        lower = [low.view(np.uint8)] if kept else self._split(low, 2 * place)
        return self._split(high, 2 * place + 1, turned=turned) + lower

    def _turned(self, words: Words, out: Words, spare: Words) -> Words:
        if self._cut.center:
            np.subtract(words, self._cut.center << 7, out=out)
            words = out
        rotate(words, self._cut.rotation, out, spare)
        return out

    def _turn_back(self, words: Words, spare: Words) -> None:
        rotate(words, 16 - self._cut.rotation, words, spare)
        if self._cut.center:
            np.add(words, self._cut.center << 7, out=words)

    def join(self, planes: list[Plane], words: Words) -> None:
        """Fill `words`, which were cut into `planes`."""
        if self._cut.width == 1:
            np.copyto(words, planes[0])
        else:
            self._merge(planes, words, 1, turned=True, kept=self._cut.kept)

    def _merge(self, planes: list[Plane], out: Words, place: int, *, turned: bool = False, kept: bool = False) -> None:
        half = out.itemsize // 2
        high = self._half(planes[:half], len(out), 2 * place + 1, turned=turned)
        low = planes[half].view(word_type(half)) if kept else self._half(planes[half:], len(out), 2 * place)
        np.left_shift(high, 8 * half, out=out, dtype=out.dtype)
        np.bitwise_or(out, low, out=out)
        if turned and half == 1 and self._cut.rotation:
            self._turn_back(out, self._tools.array(2, len(out), "spare"))

    def _half(self, planes: list[Plane], count: int, place: int, *, turned: bool = False) -> Words:
        if len(planes) == 1:
            return planes[0]
        out = self._place(len(planes), count, place)
        self._merge(planes, out, place, turned=turned)
        return out

    def _place(self, width: int, count: int, place: int) -> Words:
        return self._tools.array(width, count, f"place {place}")
