"""Words as a payload: block by block, plane by plane.

::

    header   4 bytes: width, split, center, and 1 when lower halves are kept, 2 when they are signed
    ways     2 bytes for each plane: bits, offset
    lengths  u32 each: of the parts of each block, the first bytes of the words first
    parts    as `entropy` codes them: a plane, or what it is squeezed to; before gaps, if any, how many, as a u32
    tail     bytes behind the last whole word

A block is 2^17 words, the last one less. A part's length tells how it is coded, so that nothing else need be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.base import Buffer
from ckptstore.format.codecs.blocks import block as memory
from ckptstore.format.codecs.blocks import cut_off
from ckptstore.format.codecs.cutting import WHOLE_BYTES, Cut, Cutter
from ckptstore.format.codecs.squeezing import NARROW, WHOLE, symbols_of
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import BLOCK_WORDS, WIDTHS, Plane, Words

Block = slice

_HEADER = 4
LENGTH = np.dtype("<u4")
"""Of a part, and of how many others there are."""
_KEPT, _SIGNED = 1, 2
_ABOUT, _MORE = 1.03, 1 << 16  # samples tell the size within half a percent, of small chunks within some bytes


@dataclass(frozen=True, slots=True)
class Way:
    """Whether coding a plane is tried, and to how many bits, with which offset, it is squeezed before."""

    coded: bool
    bits: int = WHOLE
    offset: int = 0

    @property
    def parts(self) -> int:
        """How many parts a plane has in a block."""
        return 1 if self.bits == WHOLE else 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How words are cut, how each plane is coded, and the size to expect as a share of the raw one."""

    cut: Cut
    ways: tuple[Way, ...]
    share: float

    @property
    def parts(self) -> int:
        """How many parts a block has."""
        return sum(way.parts for way in self.ways)


def blocks_of(count: int) -> list[Block]:
    """The blocks of that many words."""
    return [slice(start, min(start + BLOCK_WORDS, count)) for start in range(0, count, BLOCK_WORDS)]


def pack(plan: Plan, count: int, block: Callable[[Block, Tools], Words], tail: memoryview) -> Buffer:
    """The payload of `count` words, which `block` gives one block at a time, and of the `tail`."""
    lengths: list[int] = []
    head, blocks = _head(plan), blocks_of(count)
    end = len(head) + LENGTH.itemsize * plan.parts * len(blocks)
    size = count * plan.cut.width
    out = memory(end + min(int(plan.share * _ABOUT * size) + _MORE, size) + len(tail))
    with borrowed() as tools:
        for where in blocks:
            for part in _coded(plan, block(where, tools), tools):
                lengths.append(len(part))
                if end + len(part) + len(tail) > len(out):  # where a chunk is unlike its sample
                    out = _moved(out[:end], max(size, end) + len(part) + len(tail) + _MORE)
                out[end : end + len(part)] = part
                end += len(part)
    out[end : end + len(tail)] = tail
    told = head + np.array(lengths, LENGTH).tobytes()
    out[: len(told)] = np.frombuffer(told, np.uint8)
    return cut_off(out, end + len(tail))


def _moved(begun: Plane, size: int) -> Plane:
    """To where there is more room."""
    out = memory(size)
    out[: len(begun)] = begun
    return out


def _coded(plan: Plan, words: Words, tools: Tools) -> Iterator[Plane]:
    """The coded parts of a block; each stays until the next is asked for."""
    for way, plane in zip(plan.ways, Cutter(plan.cut, tools).cut(words), strict=True):
        if way.bits == WHOLE:
            yield tools.coder.encode(plane) if way.coded else plane
            continue
        common = tools.array(1, symbols_of(len(plane), way.bits), "common")
        gaps, others = tools.loops.squeeze(plane, way.bits, way.offset, common)
        yield tools.coder.encode(common)
        if len(gaps):
            yield np.concatenate([np.array([len(gaps)], LENGTH).view(np.uint8), tools.coder.encode(gaps)])
        else:
            yield gaps
        yield tools.coder.encode(others)


def _head(plan: Plan) -> bytes:
    cut, ways = plan.cut, [byte for way in plan.ways for byte in (way.bits, way.offset)]
    return bytes([cut.width, cut.split, cut.center, _KEPT * cut.kept + _SIGNED * cut.signed, *ways])


def plan_of(payload: memoryview) -> Plan:
    """Of a payload's head. Raises CorruptData."""
    width, flags = (payload[0], payload[3]) if len(payload) >= _HEADER else (0, 0)
    planes = width // 2 + 1 if flags & _KEPT else width
    return _plan_of(bytes(payload[: _HEADER + 2 * planes]))


@lru_cache(1024)  # of many chunks, few are cut and coded in a way of their own
def _plan_of(head: bytes) -> Plan:
    width, split, center, flags = head[:_HEADER] if len(head) >= _HEADER else (0, 0, 0, 0)
    if width in WIDTHS and 0 < split <= WHOLE_BYTES and flags <= _KEPT + _SIGNED:
        cut = Cut(width, split, center, bool(flags & _KEPT), bool(flags & _SIGNED))
        told = head[_HEADER:]
        ways = tuple(Way(True, *way) for way in zip(told[::2], told[1::2], strict=False))
        if _possible(cut, ways):
            return Plan(cut, ways, 1)
    raise CorruptData("a payload of planes begins with a head that cannot be")


def _possible(cut: Cut, ways: tuple[Way, ...]) -> bool:
    if (
        (cut.width == 1 and cut != Cut(1))
        or (cut.split == WHOLE_BYTES and cut.center)
        or (cut.split < WHOLE_BYTES and cut.signed)
    ):
        return False
    known = all(way.bits in NARROW or way == Way(coded=True) for way in ways)
    return known and len(ways) == len(cut.sizes) and not (cut.kept and ways[-1].bits != WHOLE)


def borders_of(payload: memoryview, plan: Plan, count: int, tail: int) -> list[int]:
    """Where every part of every block begins, and then the tail. Raises CorruptData."""
    number, head = plan.parts * len(blocks_of(count)), len(_head(plan))
    begin = head + number * LENGTH.itemsize
    if len(payload) < begin + tail:
        raise CorruptData("a payload of planes is cut short")
    lengths = np.frombuffer(payload, LENGTH, number, head).tolist()
    borders = list(accumulate(lengths, initial=begin))
    if borders[-1] + tail != len(payload):
        raise CorruptData(f"a payload of planes has {len(payload)} bytes instead of {borders[-1] + tail}")
    return borders
