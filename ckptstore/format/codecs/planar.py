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
from ckptstore.format.codecs.cutting import Cut, Cutter, Plane
from ckptstore.format.codecs.entropy import PlaneCoder, PlaneDecoder
from ckptstore.format.codecs.halving import Halver
from ckptstore.format.codecs.thinning import places, thicken, thin
from ckptstore.format.codecs.words import BLOCK_WORDS, WIDTHS, Words, words_of

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


def pack(plan: Plan, count: int, block: Callable[[Block], Words], tail: memoryview) -> Buffer:
    """The payload of `count` words, which `block` gives one block at a time, and of the `tail`."""
    lengths: list[int] = []
    head, blocks = _head(plan), blocks_of(count)
    end = len(head) + _LENGTH.itemsize * _parts_of(plan.ways) * len(blocks)
    more = sum(count // 8 for way in plan.ways if way.kind == THINNED) + len(blocks) * len(plan.ways)
    out = np.empty(end + count * plan.cut.width + more + len(tail), np.uint8)
    coder = _BlockCoder(plan, min(BLOCK_WORDS, count))
    for where in blocks:
        for part in coder.parts(block(where)):
            lengths.append(len(part))
            out[end : end + len(part)] = part
            end += len(part)
    out[end : end + len(tail)] = tail
    told = head + np.array(lengths, _LENGTH).tobytes()
    out[: len(told)] = np.frombuffer(told, np.uint8)
    out.resize(end + len(tail), refcheck=False)  # gives the rest of the memory back
    return out.data


class _BlockCoder:
    """Makes the parts of one block after the other."""

    def __init__(self, plan: Plan, most: int) -> None:
        self._ways, self._cutter, self._coder = plan.ways, Cutter(plan.cut, most), PlaneCoder()
        self._halver = Halver(most)

    def parts(self, words: Words) -> Iterator[Plane]:
        """The coded parts; each stays until the next is asked for."""
        for way, plane in zip(self._ways, self._cutter.cut(words), strict=True):
            if not way.coded:
                yield plane
                continue
            for part in cut_again(plane, way.kind, way.offset, self._halver):
                yield np.frombuffer(self._coder.encode(part), np.uint8)


def cut_again(plane: Plane, kind: int, offset: int, halver: Halver) -> tuple[Plane, ...]:
    """The parts of a plane; they stay until the next call."""
    if kind == HALVED:
        return halver.halve(plane, offset)
    return thin(plane, offset) if kind == THINNED else (plane,)


def unpack(payload: memoryview, out: memoryview, finish: Callable[[Block, Words, Words], None]) -> None:
    """Fill `out`. `finish` turns each block of words in place to what was packed; its third argument is spare memory.

    Raises CorruptData when the payload is not of `len(out)` bytes.
    """
    plan = _plan_of(payload)
    words, tail = words_of(out, plan.cut.width)
    parts = _parts(payload, plan, len(words), len(tail))
    joiner = _BlockJoiner(plan, min(BLOCK_WORDS, len(words)))
    for where in blocks_of(len(words)):
        spare = joiner.join(parts, words[where])
        finish(where, words[where], spare)
    tail[:] = next(parts)


class _BlockJoiner:
    """Makes one block after the other of their parts."""

    def __init__(self, plan: Plan, most: int) -> None:
        self._plan, self._cutter, self._decoder = plan, Cutter(plan.cut, most), PlaneDecoder()
        self._halvers = [Halver(most if way.kind == HALVED else 0) for way in plan.ways]

    def join(self, parts: Iterator[memoryview], words: Words) -> Words:
        """Fill `words`; gives as much spare memory."""
        each = zip(self._plan.ways, self._plan.cut.sizes, self._halvers, strict=True)
        planes = [self._plane(parts, way, size * len(words), halver) for way, size, halver in each]
        self._cutter.join(planes, words)
        return self._cutter.spare(words.itemsize, len(words))

    def _plane(self, parts: Iterator[memoryview], way: Way, size: int, halver: Halver) -> Plane:
        decode = self._decoder.decode
        if way.kind == HALVED:
            upper, lower = (decode(next(parts), (size + 1) // 2) for _ in range(2))
            return halver.join(upper, lower, size, way.offset)
        if way.kind == THINNED:
            where = places(decode(next(parts), (size + 7) // 8), size)
            return thicken(decode(next(parts), int(np.count_nonzero(where))), where, way.offset)
        return decode(next(parts), size)


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
