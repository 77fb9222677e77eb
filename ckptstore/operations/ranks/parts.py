"""A rank's part of a tensor, and the chunks that may have to be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ckptstore.chunkstore import Piece
from ckptstore.errors import StateError, UnsupportedLeaf
from ckptstore.format.grid import Grid, Index
from ckptstore.format.manifest import INLINE_TENSOR, TensorEntry
from ckptstore.operations.ranks.shares import Shard, volume
from ckptstore.state.composites import is_dense
from ckptstore.state.dtypes import dtype_name, number_form
from ckptstore.state.tensors import Array, chunk_bytes, on_host


class Unit(NamedTuple):
    """A chunk of `size` bytes that this rank may have to store; one that is `inline` stands in the manifest instead.

    A tensor's `entry` is as yet without chunks.
    """

    path: str
    number: int
    size: int
    inline: bool
    entry: TensorEntry | None
    piece: Callable[[], Piece]


def ready(piece: Piece) -> Piece:
    """For a `Unit` whose bytes are there already."""
    return piece


@dataclass(slots=True)
class Part:
    """A shard of a tensor, and how to get at its elements, which is asked for once."""

    shard: Shard
    dtype: torch.dtype | np.dtype[Any]
    resolve: Callable[[], Array]
    _array: Array | None = field(default=None, init=False)

    @property
    def is_inline(self) -> bool:
        """Whether the whole tensor stands in the manifest."""
        return prod(self.shard.shape) * self.shard.itemsize <= INLINE_TENSOR

    def box(self, start: Index, stop: Index) -> memoryview:
        """The row-major bytes of a box of the whole tensor."""
        low, high = ([at - first for at, first in zip(box, self.shard.start, strict=True)] for box in (start, stop))
        return chunk_bytes(self._elements(), tuple(low), tuple(high))

    def units(self, grid: Grid) -> Iterator[Unit]:
        """The chunks that lie within the shard."""
        entry = self.entry(grid)
        for number in self.shard.whole_chunks(grid):
            start, stop = grid.box(number)
            size = volume(start, stop) * self.shard.itemsize
            yield Unit(self.shard.path, number, size, self.is_inline, entry, partial(self._piece, start, stop))

    def entry(self, grid: Grid) -> TensorEntry:
        """Of the whole tensor, as yet without chunks."""
        shape, itemsize = self.shard.shape, self.shard.itemsize
        library: Literal["torch", "numpy"] = "torch" if isinstance(self.dtype, torch.dtype) else "numpy"
        return TensorEntry(library, dtype_name(self.dtype), itemsize, shape, grid.chunk_shape)

    def _piece(self, start: Index, stop: Index) -> Piece:
        return Piece(self.box(start, stop), copied=True, form=number_form(self.dtype))

    def _elements(self) -> Array:
        """Raises StateError when they are not what was planned."""
        if self._array is None:
            found, path = self.resolve(), self.shard.path
            shape = tuple(high - low for low, high in zip(self.shard.start, self.shard.stop, strict=True))
            if isinstance(found, torch.Tensor) and not is_dense(found):
                raise UnsupportedLeaf(path, f"a tensor of layout {found.layout}", "save its dense parts")
            if tuple(found.shape) != shape or found.dtype != self.dtype:
                planned = f"{self.dtype} of shape {list(shape)}"
                raise StateError(f"{path!r}: {planned} was planned, but there is {found.dtype} of {list(found.shape)}")
            self._array = on_host(found)
        return self._array
