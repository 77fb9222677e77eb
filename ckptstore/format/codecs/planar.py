"""Words as a payload: block by block, plane by plane.

::

    header   4 bytes: width, rotation, center, whether lower halves are kept
    ways     2 bytes for each plane: whole, halved or thinned, the offset
    lengths  u32 each: of the parts of each block, the first bytes of the words first
    parts    as `entropy` codes them: a plane, or the upper and the lower halves of its bytes, or places and bytes
    tail     bytes behind the last whole word

A block is 2^17 words, the last one less. A part's length tells how it is coded, so that nothing else need be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.base import Buffer
from ckptstore.format.codecs.cutting import Cut, Cutter
from ckptstore.format.codecs.halving import halve, join_halves
from ckptstore.format.codecs.thinning import places, thicken, thin
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import BLOCK_WORDS, WIDTHS, Plane, Words, words_of

Block = slice

_HEADER = 4
_LENGTH = np.dtype("<u4")


WHOLE, HALVED, THINNED = range(3)


@dataclass(frozen=True, slots=True)
class Way:
    """Whether coding a plane is tried, and how it is cut before; `offset` is what halves or thins it best."""

    coded: bool
    kind: int = WHOLE
    offset: int = 0

    @property
    def parts(self) -> int:
        """How many parts a plane has in a block."""
        return 1 if self.kind == WHOLE else 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How words are cut, how each plane is coded, and the size to expect as a share of the raw one."""

    cut: Cut
    ways: tuple[Way, ...]
    share: float


def blocks_of(count: int) -> list[Block]:
    """The blocks of that many words."""
    return [slice(start, min(start + BLOCK_WORDS, count)) for start in range(0, count, BLOCK_WORDS)]


def pack(plan: Plan, count: int, block: Callable[[Block, Tools], Words], tail: memoryview) -> Buffer:
    """The payload of `count` words, which `block` gives one block at a time, and of the `tail`."""
    lengths: list[int] = []
    head, blocks = _head(plan), blocks_of(count)
    end = len(head) + _LENGTH.itemsize * _parts_of(plan.ways) * len(blocks)
    more = sum(count // 8 for way in plan.ways if way.kind == THINNED) + len(blocks) * len(plan.ways)
    out = np.empty(end + count * plan.cut.width + more + len(tail), np.uint8)
    with borrowed() as tools:
        for where in blocks:
            for part in _coded(plan, block(where, tools), tools):
                lengths.append(len(part))
                out[end : end + len(part)] = part
                end += len(part)
    out[end : end + len(tail)] = tail
    told = head + np.array(lengths, _LENGTH).tobytes()
    out[: len(told)] = np.frombuffer(told, np.uint8)
    out.resize(end + len(tail), refcheck=False)  # gives the rest of the memory back
    return out.data


def _coded(plan: Plan, words: Words, tools: Tools) -> Iterator[Plane]:
    """The coded parts of a block; each stays until the next is asked for."""
    for way, plane in zip(plan.ways, Cutter(plan.cut, tools).cut(words), strict=True):
        for part in cut_again(plane, way.kind, way.offset, tools):
            yield np.frombuffer(tools.coder.encode(part), np.uint8) if way.coded else part


def cut_again(plane: Plane, kind: int, offset: int, tools: Tools) -> tuple[Plane, ...]:
    """The parts of a plane; they stay until the next call."""
    if kind == HALVED:
        return halve(plane, offset, tools)
    return thin(plane, offset) if kind == THINNED else (plane,)


def unpack(payload: memoryview, out: memoryview, finish: Callable[[Block, Words, Tools], None]) -> None:
    """Fill `out`; `finish` turns each block of words in place to what was packed.

    Raises CorruptData when the payload is not of `len(out)` bytes.
    """
    plan = _plan_of(payload)
    words, tail = words_of(out, plan.cut.width)
    parts = _parts(payload, plan, len(words), len(tail))
    with borrowed() as tools:
        for where in blocks_of(len(words)):
            planes = _decoded(plan, parts, where.stop - where.start, tools)
            Cutter(plan.cut, tools).join(planes, words[where])
            finish(where, words[where], tools)
    tail[:] = next(parts)


def _decoded(plan: Plan, parts: Iterator[memoryview], count: int, tools: Tools) -> list[Plane]:
    planes = []
    for place, (way, width) in enumerate(zip(plan.ways, plan.cut.sizes, strict=True)):
        size = width * count
        if way.kind == HALVED:
            upper, lower = (tools.decoder.decode(next(parts), (size + 1) // 2) for _ in range(2))
            out = tools.array(1, 2 * len(upper), f"plane {place}")
            planes.append(join_halves(upper, lower, out, way.offset, tools)[:size])
        elif way.kind == THINNED:
            where = places(tools.decoder.decode(next(parts), (size + 7) // 8), size)
            others = tools.decoder.decode(next(parts), len(where))
            planes.append(thicken(others, where, way.offset, size))
        else:
            planes.append(tools.decoder.decode(next(parts), size))
    return planes


def _head(plan: Plan) -> bytes:
    ways = [byte for way in plan.ways for byte in (way.kind, way.offset)]
    return bytes([plan.cut.width, plan.cut.rotation, plan.cut.center, plan.cut.kept, *ways])


def _plan_of(payload: memoryview) -> Plan:
    """Of a payload's head. Raises CorruptData."""
    width, rotation, center, kept = payload[:4] if len(payload) >= 4 else (0, 0, 0, 0)
    turned = rotation > 0
    if width in WIDTHS and rotation < 16 and max(turned, kept) <= (width > 1) and (turned or not center):
        cut = Cut(width, rotation, center, bool(kept))
        told = payload[4 : 4 + 2 * len(cut.sizes)]
        ways = tuple(Way(True, *way) for way in zip(told[::2], told[1::2], strict=False))
        known = all(way.kind <= THINNED and (way.kind or not way.offset) for way in ways)
        if known and len(ways) == len(cut.sizes) and not (kept and ways[-1].kind):
            return Plan(cut, ways, 1)
    raise CorruptData("a payload of planes begins with a head that cannot be")


def _parts(payload: memoryview, plan: Plan, count: int, tail: int) -> Iterator[memoryview]:
    """Every part of every block, and the tail. Raises CorruptData."""
    number, head = _parts_of(plan.ways) * len(blocks_of(count)), len(_head(plan))
    begin = head + number * _LENGTH.itemsize
    if len(payload) < begin + tail:
        raise CorruptData("a payload of planes is cut short")
    lengths = [int(length) for length in np.frombuffer(payload, _LENGTH, number, head)]
    borders = list(accumulate([*lengths, tail], initial=begin))
    if borders[-1] != len(payload):
        raise CorruptData(f"a payload of planes has {len(payload)} bytes instead of {borders[-1]}")
    return (payload[start:stop] for start, stop in pairwise(borders))


def _parts_of(ways: Sequence[Way]) -> int:
    return sum(way.parts for way in ways)
