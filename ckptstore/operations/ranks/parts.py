"""A rank's part of a tensor, and the chunks that may have to be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from ckptstore.chunkstore import Piece
from ckptstore.format.grid import Grid, Index
from ckptstore.format.manifest import INLINE_TENSOR, TensorEntry
from ckptstore.operations.ranks.dealing import Shard, volume
from ckptstore.state.addresses import lies_in
from ckptstore.state.devices.leaf import DeviceLeaf, bring_all
from ckptstore.state.devices.prints import Span
from ckptstore.state.dtypes import dtype_name, number_form
from ckptstore.state.tensors import TensorLeaf


class Place(NamedTuple):
    """A range of bytes of a leaf on a device."""

    leaf: DeviceLeaf
    span: Span

    def known(self) -> bytes | None:
        """Their digest, as far as that was learned."""
        return self.leaf.digests().get(self.span)

    def learn(self, digest: bytes) -> None:
        """Know it from here on."""
        self.leaf.digests()[self.span] = digest


class Content(Protocol):
    """The bytes of a chunk."""

    def place(self) -> Place | None:
        """Where they are, if that is one range on a device."""

    def piece(self) -> Piece:
        """The bytes; `pieces_of` brings many sooner."""


class Unit(NamedTuple):
    """A chunk of `size` bytes that this rank may have to store; one that is `inline` stands in the manifest instead.

    A tensor's `entry` is as yet without chunks.
    """

    path: str
    number: int
    size: int
    inline: bool
    entry: TensorEntry | None
    content: Content


class Ready(NamedTuple):
    """Bytes that are there already."""

    there: Piece

    def place(self) -> None:
        return None

    def piece(self) -> Piece:
        return self.there


@dataclass(slots=True)
class Part:
    """A shard of a tensor, and how to get at the leaf that has its elements, which is asked for once.

    The shard begins at `local` in that, by default at its first element.
    """

    shard: Shard
    dtype: torch.dtype | np.dtype[Any]
    resolve: Callable[[], TensorLeaf]
    local: Index | None = None
    _leaf: TensorLeaf | None = field(default=None, init=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the shard."""
        return volume(self.shard.start, self.shard.stop) * self.shard.itemsize

    @property
    def is_inline(self) -> bool:
        """Whether the whole tensor stands in the manifest."""
        return prod(self.shard.shape) * self.shard.itemsize <= INLINE_TENSOR

    @property
    def leaf(self) -> TensorLeaf:
        """See `resolve`."""
        if self._leaf is None:
            self._leaf = self.resolve()
        return self._leaf

    def box(self, start: Index, stop: Index) -> memoryview:
        """The row-major bytes of a box of the whole tensor."""
        return self.leaf.box(*self.within(start, stop))

    def within(self, start: Index, stop: Index) -> tuple[Index, Index]:
        """Where a box of the whole tensor is in the leaf."""
        local = self.local or (0,) * len(start)
        moved = [at - first for at, first in zip(local, self.shard.start, strict=True)]
        low, high = (tuple(at + by for at, by in zip(corner, moved, strict=True)) for corner in (start, stop))
        return low, high

    def units(self, grid: Grid) -> Iterator[Unit]:
        """The chunks that lie within the shard."""
        entry = self.entry(grid)
        for number in self.shard.whole_chunks(grid):
            start, stop = grid.box(number)
            size = volume(start, stop) * self.shard.itemsize
            yield Unit(self.shard.path, number, size, self.is_inline, entry, _Box(self, start, stop))

    def entry(self, grid: Grid) -> TensorEntry:
        """Of the whole tensor, as yet without chunks."""
        shape, itemsize = self.shard.shape, self.shard.itemsize
        library: Literal["torch", "numpy"] = "torch" if isinstance(self.dtype, torch.dtype) else "numpy"
        return TensorEntry(library, dtype_name(self.dtype), itemsize, shape, grid.chunk_shape)


class _Box(NamedTuple):
    """A chunk that lies within a part."""

    part: Part
    start: Index
    stop: Index

    def place(self) -> Place | None:
        leaf = self.part.leaf
        if not isinstance(leaf, DeviceLeaf):
            return None
        span = leaf.span(*self.part.within(self.start, self.stop))
        return None if span is None else Place(leaf, span)

    def piece(self) -> Piece:
        data = self.part.box(self.start, self.stop)
        live = self.part.shard.path if lies_in(data, self.part.leaf.tensor) else ""
        return Piece(data, copied=True, form=number_form(self.part.dtype), live=live)


def pieces_of(units: Sequence[Unit]) -> list[Piece]:
    """The bytes of all, in order; from devices the next ones are under way while one is waited for."""
    places = [unit.content.place() for unit in units]
    arriving = bring_all(place for place in places if place is not None)
    return [
        unit.content.piece() if place is None else Piece(next(arriving), copied=True, form=place.leaf.form)
        for unit, place in zip(units, places, strict=True)
    ]
