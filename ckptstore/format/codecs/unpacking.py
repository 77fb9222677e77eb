"""Payloads of planes on their way back to words, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.planar import LENGTH, Block, Way, blocks_of, parts_of, plan_of
from ckptstore.format.codecs.squeezing import WHOLE, per_byte, symbols_of
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words, words_of

_NONE = np.empty(0, np.uint8)
Below = Callable[[Block, Words, Tools], None]
"""Fills the words of a block with those that differences are from, before these are added."""


class Unpacking:
    """A payload, and the bytes that it is to fill. Raises CorruptData when it is not of as many."""

    def __init__(self, payload: memoryview, out: memoryview) -> None:
        self._plan = plan_of(payload)
        self._words, self._tail = words_of(out, self.width)
        self._parts = parts_of(payload, self._plan, len(self._words), len(self._tail))

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return self._plan.cut.width

    def run(self, below: Below | None = None) -> None:
        """Fill everything; with `below` the words are differences."""
        with borrowed() as tools:
            for where in blocks_of(len(self._words)):
                if below is not None:
                    below(where, self._words[where], tools)
                self.fill(where, self._words[where], tools, onto=below is not None)
        self._tail[:] = next(self._parts)

    def fill(self, where: Block, words: Words, tools: Tools, *, onto: bool = False) -> None:
        """Fill the words of the next block, or add to them."""
        planes = _decoded(self._plan.ways, self._plan.cut.sizes, self._parts, len(words), tools)
        Cutter(self._plan.cut, tools).join(planes, words, onto=onto)


def _decoded(
    ways: tuple[Way, ...], widths: list[int], parts: Iterator[memoryview], count: int, tools: Tools
) -> list[Plane]:
    planes = []
    for place, (way, width) in enumerate(zip(ways, widths, strict=True)):
        if way.bits == WHOLE:
            planes.append(tools.decoder.decode(next(parts), width * count))
        else:
            planes.append(_spread(way, parts, count, tools, f"plane {place}"))
    return planes


def _spread(way: Way, parts: Iterator[memoryview], count: int, tools: Tools, use: str) -> Plane:
    symbols = symbols_of(count, way.bits)
    common = tools.decoder.decode(next(parts), symbols)
    padded = tools.array(1, max(count, symbols * per_byte(way.bits)), use)
    tools.loops.spread(common, way.bits, way.offset, *_told(next(parts), next(parts), count, tools), padded, count)
    return padded[:count]


def _told(coded: memoryview, others: memoryview, count: int, tools: Tools) -> tuple[Plane, Plane]:
    """Gaps and others."""
    if len(coded) > LENGTH.itemsize:
        number = int.from_bytes(coded[: LENGTH.itemsize], "little")
        if number > count:
            raise CorruptData(f"a plane of {count} bytes tells of {number} others")
        return tools.decoder.decode(coded[LENGTH.itemsize :], number), tools.decoder.decode(others, number)
    if len(coded) or len(others):
        raise CorruptData("a plane tells of others, but not of where they are")
    return _NONE, _NONE
