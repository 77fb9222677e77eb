"""The grid of chunks over an array: which chunk holds which elements.

The grid depends on the store and the array's shape alone, so the same weights give the same chunks whoever saves them.
A chunk is contiguous in row-major order: leading dims of extent 1, one dim that is split, and the dims behind it whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any, NamedTuple

from ckptstore.cached import cached_property

Index = tuple[int, ...]


def extents(start: Index, stop: Index) -> Index:
    """Elements along each dim of a box."""
    return tuple(high - low for low, high in zip(start, stop, strict=True))


def box_index(start: Index, stop: Index) -> tuple[Any, ...]:
    """The index of a box, which gives a view also of what has no dims."""
    return *map(slice, start, stop), ...


class Division(NamedTuple):
    """How a store divides arrays into chunks.

    Attributes:
        most: bytes of a chunk, unless one element is larger.
        halved: whether rows are halved as often as needed, so that chunks end where shards of 2, 4, 8… ranks do. Rows
            that can not be halved, and all of a store of earlier versions, are cut at powers of two.
    """

    most: int
    halved: bool

    def rows(self, extent: int, size: int) -> int:
        """How many of so many rows of a size, in bytes, are in a chunk."""
        fitting = max(self.most // size, 1)
        halvings = (-(-extent // fitting) - 1).bit_length()
        if self.halved and extent % (1 << halvings) == 0:
            return extent >> halvings
        return 1 << fitting.bit_length() - 1


@lru_cache(1024)  # of many leaves, few have a form of their own
def default_chunk_shape(shape: Index, itemsize: int, division: Division) -> Index:
    """The chunk shape for an array."""
    inner = itemsize
    for dim in reversed(range(len(shape))):
        if inner * shape[dim] > division.most:
            return (1,) * dim + (division.rows(shape[dim], inner),) + shape[dim + 1 :]
        inner *= shape[dim]
    return tuple(max(extent, 1) for extent in shape)


@dataclass(frozen=True)
class Grid:
    """Chunks of `chunk_shape` laid over `shape`, numbered in C order; those at the upper borders are smaller."""

    shape: Index
    chunk_shape: Index

    @cached_property
    def counts(self) -> Index:
        """How many chunks lie along each dim."""
        return tuple(-(-extent // chunk) for extent, chunk in zip(self.shape, self.chunk_shape, strict=True))

    def __len__(self) -> int:
        return prod(self.counts)

    def box(self, number: int) -> tuple[Index, Index]:
        """First element and one past the last of a chunk, per dim."""
        start = []
        for count, chunk in zip(reversed(self.counts), reversed(self.chunk_shape), strict=True):
            number, place = divmod(number, count)
            start.append(place * chunk)
        start.reverse()
        stop = tuple(
            min(first + chunk, extent) for first, chunk, extent in zip(start, self.chunk_shape, self.shape, strict=True)
        )
        return tuple(start), stop

    def sizes(self, itemsize: int) -> list[int]:
        """The length in bytes of every chunk."""
        return [count * itemsize for count in self._elements]

    def spans(self, itemsize: int) -> list[tuple[int, int]]:
        """First byte and one past the last of every chunk, of one behind the other: see `is_consecutive`."""
        return list(pairwise(accumulate(self.sizes(itemsize), initial=0)))

    @cached_property
    def _elements(self) -> list[int]:
        """How many elements every chunk has."""
        found = [1]
        for extent, chunk in zip(self.shape, self.chunk_shape, strict=True):
            widths = [min(chunk, extent - at) for at in range(0, extent, chunk)]
            found = [count * width for count in found for width in widths]
        return found

    @cached_property
    def is_consecutive(self) -> bool:
        """Whether the chunks, one behind the other, are the array in row-major order."""
        split = False
        for extent, chunk in zip(self.shape, self.chunk_shape, strict=True):
            if split and chunk < extent:
                return False
            split = split or min(chunk, extent) > 1
        return True

    def touching(self, start: Index, stop: Index) -> Iterator[int]:
        """Numbers of the chunks that share an element with the box from `start` to `stop`, ascending."""
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return
        places = [range(a // chunk, -(-b // chunk)) for a, b, chunk in zip(start, stop, self.chunk_shape, strict=True)]
        for place in product(*places):
            number = 0
            for count, at in zip(self.counts, place, strict=True):
                number = number * count + at
            yield number


@lru_cache(1024)  # see `default_chunk_shape`
def grid_of(shape: Index, chunk_shape: Index) -> Grid:
    """A grid that may be shared."""
    return Grid(shape, chunk_shape)
