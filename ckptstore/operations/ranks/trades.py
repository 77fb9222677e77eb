"""The pieces of shared chunks that ranks send each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ckptstore.chunkstore import Piece
from ckptstore.format.grid import Division, Grid, Index, extents
from ckptstore.format.manifest import TensorEntry
from ckptstore.operations.ranks.dealing import Deal, SharedChunk, overlap, volume
from ckptstore.operations.ranks.parts import Part, Ready, Unit
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.state.dtypes import number_form

Box = tuple[Index, Index]


class _Send(NamedTuple):
    part: Part
    box: Box
    size: int


class _Assembly(NamedTuple):
    """A shared chunk of this rank, of a tensor that `like` is a part of: its own pieces, and those of others.

    The latter stand in the order in which these send them.
    """

    number: int
    box: Box
    like: Part
    entry: TensorEntry
    own: list[tuple[Part, Box]]
    others: list[tuple[int, Box, int]]

    def assembled(self, arrived: Mapping[int, Iterator[memoryview]]) -> memoryview:
        start, stop = self.box
        whole = np.empty(extents(start, stop), f"V{self.like.shard.itemsize}")
        for part, box in self.own:
            self._place(whole, box, part.box(*box))
        for rank, box, _ in self.others:
            self._place(whole, box, next(arrived[rank]))
        return whole.reshape(-1).view(np.uint8).data

    def _place(self, whole: np.ndarray[Any, Any], box: Box, data: memoryview) -> None:
        where = tuple(slice(low - first, high - first) for low, high, first in zip(*box, self.box[0], strict=True))
        region = whole[where]
        region[...] = np.frombuffer(data, whole.dtype).reshape(region.shape)


class Trades:
    """Those of one rank, by turn. Sender and owner derive the same order from what each was dealt."""

    def __init__(self, rank: int, deals: Sequence[Deal], parts: Sequence[Part], division: Division) -> None:
        self._rank = rank
        self._sends: dict[int, dict[int, list[_Send]]] = defaultdict(lambda: defaultdict(list))
        self._assemblies: dict[int, list[_Assembly]] = defaultdict(list)
        own: dict[str, list[Part]] = defaultdict(list)
        for part in parts:
            own[part.shard.path].append(part)
        for each in deals:
            held = own[each.path]
            grid = held[0].shard.grid(division)
            for chunk in each.chunks:
                if chunk.owner == rank:
                    self._keep(chunk, grid, held)
                else:
                    self._give(chunk, grid.box(chunk.number), held)

    def exchange(self, ranks: Ranks, turn: int) -> dict[int, torch.Tensor]:
        """What the others sent of this rank's chunks."""
        sends = self._sends[turn]
        sizes = {rank: sum(send.size for send in pieces) for rank, pieces in sends.items()}
        expected: dict[int, int] = defaultdict(int)
        for assembly in self._assemblies[turn]:
            for rank, _, size in assembly.others:
                expected[rank] += size
        return ranks.exchange(partial(_joined, sends), sizes, expected)

    def units(self, turn: int, arrived: Mapping[int, torch.Tensor]) -> Iterator[Unit]:
        """This rank's shared chunks."""
        pieces = {rank: self._cut(turn, rank, data) for rank, data in arrived.items()}
        for assembly in self._assemblies[turn]:
            data = assembly.assembled(pieces)
            like, piece = assembly.like, Piece(data, copied=True, form=number_form(assembly.like.dtype))
            yield Unit(like.shard.path, assembly.number, len(data), like.is_inline, assembly.entry, Ready(piece))

    def held(self, turn: int) -> Iterator[tuple[str, int]]:
        """Path and bytes of every piece of this rank's that the turn is about."""
        for sends in self._sends[turn].values():
            yield from ((send.part.shard.path, send.size) for send in sends)
        for assembly in self._assemblies[turn]:
            yield from ((part.shard.path, _bytes(part, box)) for part, box in assembly.own)

    def _give(self, chunk: SharedChunk, chunk_box: Box, held: Sequence[Part]) -> None:
        for part in held:
            common = overlap(*chunk_box, part.shard.start, part.shard.stop)
            if common is not None:
                self._sends[chunk.turn][chunk.owner].append(_Send(part, common, _bytes(part, common)))

    def _keep(self, chunk: SharedChunk, grid: Grid, held: Sequence[Part]) -> None:
        parts = {(part.shard.start, part.shard.stop): part for part in held}
        box = grid.box(chunk.number)
        assembly = _Assembly(chunk.number, box, held[0], held[0].entry(grid), own=[], others=[])
        for rank, start, stop in chunk.boxes:
            common = overlap(*box, start, stop)
            assert common is not None
            if rank == self._rank:
                assembly.own.append((parts[start, stop], common))
            else:
                assembly.others.append((rank, common, _bytes(held[0], common)))
        self._assemblies[chunk.turn].append(assembly)

    def _cut(self, turn: int, rank: int, data: torch.Tensor) -> Iterator[memoryview]:
        content, at = memoryview(data.numpy()), 0  # type: ignore[arg-type] # arrays are buffers
        for assembly in self._assemblies[turn]:
            for sender, _, size in assembly.others:
                if sender == rank:
                    yield content[at : at + size]
                    at += size


def _bytes(like: Part, box: Box) -> int:
    return volume(*box) * like.shard.itemsize


def _joined(sends: Mapping[int, Sequence[_Send]]) -> dict[int, torch.Tensor]:
    return {
        rank: torch.from_numpy(np.concatenate([np.frombuffer(send.part.box(*send.box), np.uint8) for send in pieces]))
        for rank, pieces in sends.items()
    }
