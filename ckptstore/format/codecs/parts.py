"""The parts of a payload of planes, with what is coded in them decoded: one call of zstd for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.entropy import PlaneDecoder
from ckptstore.format.codecs.layout import LENGTH, Block, Plan
from ckptstore.format.codecs.squeezing import WHOLE, symbols_of
from ckptstore.format.codecs.words import Plane

STORED, DECODED, ALIKE = range(3)
"""Where the bytes of a part are: in the payload, among those decoded, or all of them are one."""
_TOGETHER = 1 << 20
"""Bytes to decode: so few take little memory, so many spare waiting for Python's lock."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of some blocks.

    Attributes:
        stored: the payload.
        decoded: what zstd's frames in it hold.
        table: of each part of each block where its bytes are, where they begin or what they all are, how many they are.
    """

    stored: Plane
    decoded: Plane
    table: npt.NDArray[np.int64]

    def of(self, block: int) -> Iterator[Plane]:
        """The parts of a block, one after the other."""
        for source, start, size in self.table[block].tolist():
            if source == ALIKE:
                yield np.full(size, start, np.uint8)
            else:
                yield (self.decoded if source == DECODED else self.stored)[start : start + size]


class PartReader:
    """Reads the parts of one payload, block by block. Raises CorruptData."""

    def __init__(self, payload: memoryview, plan: Plan, borders: Sequence[int]) -> None:
        self._payload, self._borders, self._next = payload, borders, 0
        self._stored = np.frombuffer(payload, np.uint8)
        self._layout = [(way.bits, width) for way, width in zip(plan.ways, plan.cut.sizes, strict=True)]
        self._frames: list[memoryview] = []
        self._sizes: list[int] = []
        self._size = 0
        self._rows: list[tuple[int, int, int]] = []

    def read(self, blocks: Sequence[Block], decoder: PlaneDecoder) -> Parts:
        """All parts of the next blocks, of as many of these as are decoded together."""
        self._frames, self._sizes, self._size, self._rows = [], [], 0, []
        taken = 0
        for block in blocks:
            taken += 1
            count = block.stop - block.start
            for bits, width in self._layout:
                if bits == WHOLE:
                    self._add(width * count)
                else:
                    self._add(symbols_of(count, bits))
                    self._add_others(count)
            if self._size >= _TOGETHER:
                break
        table = np.array(self._rows, np.int64).reshape(taken, -1, 3)
        return Parts(self._stored, decoder.decode(self._frames, self._sizes), table)

    def _add(self, size: int, skipped: int = 0) -> None:
        """The next part, which stands for so many bytes, but for the first ones of it."""
        start, stop = self._borders[self._next] + skipped, self._borders[self._next + 1]
        self._next += 1
        if stop - start == size:
            self._rows.append((STORED, start, size))
        elif stop - start == 1:
            self._rows.append((ALIKE, self._payload[start], size))
        else:
            self._rows.append((DECODED, self._size, size))
            self._sizes.append(size)
            self._size += size
            self._frames.append(self._payload[start:stop])

    def _add_others(self, count: int) -> None:
        """Gaps and others, where there are any."""
        start, stop, end = self._borders[self._next : self._next + 3]
        number = 0
        if stop - start > LENGTH.itemsize:
            number = int.from_bytes(self._payload[start : start + LENGTH.itemsize], "little")
            if number > count:
                raise CorruptData(f"a plane of {count} bytes tells of {number} others")
        elif end > start:
            raise CorruptData("a plane tells of others, but not of where they are")
        self._add(number, LENGTH.itemsize if number else 0)
        self._add(number)
