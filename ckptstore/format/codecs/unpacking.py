"""Payloads of planes on their way back to words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.layout import Plan, Way, blocks_of, plan_of
from ckptstore.format.codecs.parts import ALIKE, STORED, Source, source_of, tabulate
from ckptstore.format.codecs.squeezing import WHOLE, per_byte
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words, words_of


class Unpacking:
    """A payload, and the bytes that it is to fill. Raises CorruptData when it is not of as many."""

    def __init__(self, payload: memoryview, out: memoryview) -> None:
        self._plan = plan_of(payload)
        self._words, self._tail = words_of(out, self.width)
        self._source = source_of(payload, self._plan, len(self._words), len(self._tail))

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return self._plan.cut.width

    def run(self, *, onto: bool = False) -> None:
        """Fill everything; with `onto` the words are differences, and added to what is there."""
        with borrowed() as tools:
            done = tools.loops.unpack(self._plan, self._source, self._words, onto=onto)
            if not done:
                _unpack(self._plan, self._source, self._words, tools, onto=onto)  # it also says what is damaged
            if done is False:
                raise CorruptData("a payload of planes does not decode")
        self._tail[:] = self._source.tail.data


def _unpack(plan: Plan, source: Source, words: Words, tools: Tools, *, onto: bool) -> None:
    table = source.new_table()
    if not tabulate(source.stored, source.borders.tolist(), source.shapes.tolist(), len(words), table):
        raise CorruptData("a part of a plane has not the length of what it stands for")
    for where, rows in zip(blocks_of(len(words)), table.tolist(), strict=True):
        block, parts = words[where], _parts(source.stored, rows, tools)
        Cutter(plan.cut, tools).join(list(_planes(plan, parts, len(block), tools)), block, onto=onto)


def _parts(stored: Plane, rows: Sequence[tuple[int, int, int, int]], tools: Tools) -> Iterator[Plane]:
    for coding, start, length, size in rows:
        part = stored[start : start + length]
        if coding == STORED:
            yield part
        else:
            yield np.full(size, part[0]) if coding == ALIKE else tools.decoder.decode(part, size)


def _planes(plan: Plan, parts: Iterator[Plane], count: int, tools: Tools) -> Iterator[Plane]:
    for place, way in enumerate(plan.ways):
        yield next(parts) if way.bits == WHOLE else _spread(way, parts, count, tools, f"plane {place}")


def _spread(way: Way, parts: Iterator[Plane], count: int, tools: Tools, use: str) -> Plane:
    common, gaps, others = (next(parts) for _ in range(3))
    padded = tools.array(1, max(count, len(common) * per_byte(way.bits)), use)
    tools.loops.spread(common, way.bits, way.offset, gaps, others, padded, count)
    return padded[:count]
