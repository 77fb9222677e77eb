"""Payloads of planes on their way back to words."""

from __future__ import annotations

from collections.abc import Iterator

from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.layout import Plan, Way, blocks_of, borders_of, plan_of
from ckptstore.format.codecs.parts import PartReader, Parts
from ckptstore.format.codecs.squeezing import WHOLE, per_byte
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words, words_of


class Unpacking:
    """A payload, and the bytes that it is to fill. Raises CorruptData when it is not of as many."""

    def __init__(self, payload: memoryview, out: memoryview) -> None:
        self._plan = plan_of(payload)
        self._words, self._tail = words_of(out, self.width)
        borders = borders_of(payload, self._plan, len(self._words), len(self._tail))
        self._reader = PartReader(payload, self._plan, borders)
        self._end = payload[borders[-1] :]

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return self._plan.cut.width

    def run(self, *, onto: bool = False) -> None:
        """Fill everything; with `onto` the words are differences, and added to what is there."""
        blocks = blocks_of(len(self._words))
        with borrowed() as tools:
            while blocks:
                parts = self._reader.read(blocks, tools.decoder)
                some, blocks = blocks[: len(parts.table)], blocks[len(parts.table) :]
                words = self._words[some[0].start : some[-1].stop]
                if not tools.loops.unpack(self._plan, parts, words, onto=onto):
                    _unpack(self._plan, parts, words, tools, onto=onto)
        self._tail[:] = self._end


def _unpack(plan: Plan, parts: Parts, words: Words, tools: Tools, *, onto: bool) -> None:
    for number, where in enumerate(blocks_of(len(words))):
        block = words[where]
        Cutter(plan.cut, tools).join(list(_planes(plan, parts.of(number), len(block), tools)), block, onto=onto)


def _planes(plan: Plan, parts: Iterator[Plane], count: int, tools: Tools) -> Iterator[Plane]:
    for place, way in enumerate(plan.ways):
        yield next(parts) if way.bits == WHOLE else _spread(way, parts, count, tools, f"plane {place}")


def _spread(way: Way, parts: Iterator[Plane], count: int, tools: Tools, use: str) -> Plane:
    common, gaps, others = (next(parts) for _ in range(3))
    padded = tools.array(1, max(count, len(common) * per_byte(way.bits)), use)
    tools.loops.spread(common, way.bits, way.offset, gaps, others, padded, count)
    return padded[:count]
