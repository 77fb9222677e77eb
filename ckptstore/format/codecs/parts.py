"""The parts of a payload of planes, with what is coded in them decoded: one call of zstd for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.planar import LENGTH, Block, Plan
from ckptstore.format.codecs.squeezing import WHOLE, symbols_of
from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import Plane

STORED, DECODED, ALIKE = range(3)
"""Where the bytes of a part are: in the payload, among those decoded, or all of them are one."""


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
        self._payload, self._plan = payload, plan
        self._spans = iter(zip(borders, borders[1:], strict=False))
        self._stored = np.frombuffer(payload, np.uint8)

    def read(self, blocks: Sequence[Block], tools: Tools) -> Parts:
        """All parts of the next blocks; they stay until others are read with the same tools."""
        frames: list[memoryview] = []
        sizes: list[int] = []
        rows: list[tuple[int, int, int]] = []
        at = 0
        for start, stop, size in self._sized(blocks):
            if stop - start == size:
                rows.append((STORED, start, size))
            elif stop - start == 1:
                rows.append((ALIKE, self._payload[start], size))
            else:
                frames.append(self._payload[start:stop])
                sizes.append(size)
                rows.append((DECODED, at, size))
                at += size
        table = np.array(rows, np.int64).reshape(len(blocks), -1, 3)
        return Parts(self._stored, tools.decoder.decode(frames, sizes), table)

    def _sized(self, blocks: Sequence[Block]) -> Iterator[tuple[int, int, int]]:
        """Where each part begins and ends, and how many bytes it stands for."""
        for block in blocks:
            count = block.stop - block.start
            for way, width in zip(self._plan.ways, self._plan.cut.sizes, strict=True):
                if way.bits == WHOLE:
                    yield *next(self._spans), width * count
                else:
                    yield *next(self._spans), symbols_of(count, way.bits)
                    yield from self._others(count)

    def _others(self, count: int) -> Iterator[tuple[int, int, int]]:
        """Gaps and others."""
        (start, stop), (begin, end) = next(self._spans), next(self._spans)
        number = 0
        if stop - start > LENGTH.itemsize:
            number = int.from_bytes(self._payload[start : start + LENGTH.itemsize], "little")
            start += LENGTH.itemsize
            if number > count:
                raise CorruptData(f"a plane of {count} bytes tells of {number} others")
        elif stop > start or end > begin:
            raise CorruptData("a plane tells of others, but not of where they are")
        yield start, stop, number
        yield begin, end, number
