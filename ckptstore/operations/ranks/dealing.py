"""Who stores which chunk of a tensor that several ranks have parts of.

Chunks follow the grid of the whole tensor, whoever has it. A chunk that one rank has whole is that rank's; the others
are shared: one of those ranks, its owner, gets the missing pieces of it from the rest. So every number of ranks stores
the same chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import msgspec

from ckptstore.errors import StateError
from ckptstore.format.grid import Division, Grid, Index, default_chunk_shape, extents

_ROUND_BYTES = 64 << 20
"""About as much as a rank sends or gets at a time."""


class Shard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rank has of a tensor: the box from `start` to `stop` of its `shape`, of elements of `itemsize` bytes."""

    path: str
    itemsize: int
    shape: Index
    start: Index
    stop: Index

    @property
    def is_partial(self) -> bool:
        """Whether it has elements, but not all of the tensor."""
        return 0 < volume(self.start, self.stop) < prod(self.shape)

    def grid(self, division: Division) -> Grid:
        """The chunks of the whole tensor."""
        return Grid(self.shape, default_chunk_shape(self.shape, self.itemsize, division))

    def whole_chunks(self, grid: Grid) -> Iterator[int]:
        """Numbers of the chunks that lie within the shard."""
        for number in grid.touching(self.start, self.stop):
            start, stop = grid.box(number)
            if overlap(start, stop, self.start, self.stop) == (start, stop):
                yield number


class SharedChunk(NamedTuple):
    """A chunk that no rank has whole, the rank that stores it, and the round in which that gets the pieces.

    The owner also gets to know who has which boxes of the tensor that reach into the chunk.
    """

    number: int
    owner: int
    turn: int
    boxes: Sequence[tuple[int, Index, Index]] = ()


class Deal(NamedTuple):
    """Of one tensor, the shared chunks that a rank has a part in."""

    path: str
    chunks: Sequence[SharedChunk]


class Deals(NamedTuple):
    """What a rank exchanges with others, and in how many rounds all ranks do so."""

    tensors: Sequence[Deal]
    turns: int


def volume(start: Index, stop: Index) -> int:
    """Elements of a box."""
    return prod(extents(start, stop))


def overlap(start: Index, stop: Index, other_start: Index, other_stop: Index) -> tuple[Index, Index] | None:
    """The box that two boxes share; None when they share no element."""
    low = tuple(map(max, start, other_start))
    high = tuple(map(min, stop, other_stop))
    return None if any(a >= b for a, b in zip(low, high, strict=True)) else (low, high)


def deal(shards: Sequence[Sequence[Shard]], division: Division) -> list[Deals]:
    """What each rank has to do, from what each rank has of tensors that none has whole.

    Raises:
        StateError: ranks have different tensors, or the same elements, or leave some to nobody; names the path.
    """
    dealer = _Dealer(len(shards), division)
    by_path: dict[str, list[tuple[int, Shard]]] = defaultdict(list)
    for rank, held in enumerate(shards):
        for shard in held:
            by_path[shard.path].append((rank, shard))
    for path, parts in by_path.items():
        dealer.add(path, parts)
    return dealer.deals()


class _Dealer:
    def __init__(self, ranks: int, division: Division) -> None:
        self._division = division
        self._owned, self._moved = [0] * ranks, [0] * ranks
        self._deals: list[list[Deal]] = [[] for _ in range(ranks)]
        self._turns = 0

    def add(self, path: str, parts: Sequence[tuple[int, Shard]]) -> None:
        first = parts[0][1]
        if any((shard.shape, shard.itemsize) != (first.shape, first.itemsize) for _, shard in parts):
            raise StateError(f"{path!r}: ranks have shards of tensors of different shapes or dtypes")
        by_rank: dict[int, list[SharedChunk]] = defaultdict(list)
        for number, pieces in _shared(path, parts, first.grid(self._division)).items():
            owner, turn = self._assign([(parts[place][0], count * first.itemsize) for place, count in pieces])
            boxes = [(parts[place][0], parts[place][1].start, parts[place][1].stop) for place, _ in pieces]
            for rank in {parts[place][0] for place, _ in pieces}:
                by_rank[rank].append(SharedChunk(number, owner, turn, boxes if rank == owner else ()))
        for rank, chunks in by_rank.items():
            self._deals[rank].append(Deal(path, chunks))

    def deals(self) -> list[Deals]:
        return [Deals(tensors, self._turns) for tensors in self._deals]

    def _assign(self, pieces: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The owner, who has most of the bytes and the least to do among those who have as many, and the turn."""
        sizes: dict[int, int] = defaultdict(int)
        for rank, size in pieces:
            sizes[rank] += size
        owner = min(sizes, key=lambda rank: (-sizes[rank], self._owned[rank], rank))
        total = sum(sizes.values())
        self._owned[owner] += total
        turn = max(self._moved[rank] for rank in sizes) // _ROUND_BYTES
        for rank, size in sizes.items():
            moved = total - size if rank == owner else size
            self._moved[rank] = max(self._moved[rank], turn * _ROUND_BYTES) + moved
        self._turns = max(self._turns, turn + 1)
        return owner, turn


def _shared(path: str, parts: Sequence[tuple[int, Shard]], grid: Grid) -> dict[int, list[tuple[int, int]]]:
    """The chunks that nobody has whole: their pieces, as the place among the parts and the count of elements."""
    boxes = [grid.box(number) for number in range(len(grid))]
    pieces: list[list[tuple[int, int]]] = [[] for _ in boxes]
    for place, (_, shard) in enumerate(parts):
        for number in grid.touching(shard.start, shard.stop):
            common = overlap(*boxes[number], shard.start, shard.stop)
            if common is not None:
                pieces[number].append((place, volume(*common)))
    for held, box in zip(pieces, boxes, strict=True):
        count, size = sum(count for _, count in held), volume(*box)
        if count != size:
            problem = "leave some of its elements to nobody" if count < size else "have some of its elements twice"
            raise StateError(f"{path!r}: the ranks of this save {problem}: save shards that fit together")
    return {number: held for number, held in enumerate(pieces) if len(held) > 1}
