"""How words lie in a payload: block by block, plane by plane.

::

    header   4 bytes: width, split, center, and 1 when lower halves are kept, 2 when they are signed
    ways     2 bytes for each plane: bits, offset
    lengths  u32 each: of the parts of each block, the first bytes of the words first
    parts    as `entropy` codes them: a plane, or what it is squeezed to; before gaps, if any, how many, as a u32
    tail     bytes behind the last whole word

A block is 2^17 words, the last one less. A part's length tells how it is coded, so that nothing else need be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.squeezing import NARROW, WHOLE
from ckptstore.format.codecs.words import BLOCK_WORDS, WIDTHS

Block = slice

WHOLE_BYTES = 8
EXPONENT = 7
"""The bit where the exponent of a bfloat16 and of a float32 begins, of their first 16."""
LENGTH = np.dtype("<u4")
"""Of a part, and of how many others there are."""
_HEADER = 4
_KEPT, _SIGNED = 1, 2


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
    """How words are cut, and how each plane is coded.

    Attributes:
        share: the size to expect, of the raw one.
        work: what decoding a raw byte will take; see `Cost`.
        searched: whether planes are searched for what repeats itself.
    """

    cut: Cut
    ways: tuple[Way, ...]
    share: float
    work: float = 0.0
    searched: bool = False

    @property
    def parts(self) -> int:
        """How many parts a block has."""
        return sum(way.parts for way in self.ways)


def blocks_of(count: int) -> list[Block]:
    """The blocks of that many words."""
    return [slice(start, min(start + BLOCK_WORDS, count)) for start in range(0, count, BLOCK_WORDS)]


def head_of(plan: Plan) -> bytes:
    """What a payload begins with."""
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
        way_bytes = head[_HEADER:]
        ways = tuple(Way(True, *way) for way in zip(way_bytes[::2], way_bytes[1::2], strict=False))
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


def borders_of(payload: memoryview, plan: Plan, count: int, tail: int) -> npt.NDArray[np.int64]:
    """Where every part of every block begins, and then the tail. Raises CorruptData."""
    number, head = plan.parts * len(blocks_of(count)), len(head_of(plan))
    begin = head + number * LENGTH.itemsize
    if len(payload) < begin + tail:
        raise CorruptData("a payload of planes is cut short")
    borders = np.empty(number + 1, np.int64)
    borders[0] = begin
    borders[1:] = np.frombuffer(payload, LENGTH, number, head)
    borders.cumsum(out=borders)
    if borders[-1] + tail != len(payload):
        raise CorruptData(f"a payload of planes has {len(payload)} bytes instead of {borders[-1] + tail}")
    return borders
