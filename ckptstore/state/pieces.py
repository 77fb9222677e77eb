"""Tensors that lie elsewhere in pieces, as in the files of a sharded checkpoint, and are brought chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from ckptstore.errors import InvalidArgument
from ckptstore.format.grid import Index, extents
from ckptstore.state.arrays import Array, chunk_bytes, write_box
from ckptstore.state.new_arrays import fresh
from ckptstore.state.tensors import TensorLeaf


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """The box of a tensor from `start` to before `stop`, which `load` brings."""

    start: Index
    stop: Index
    load: Callable[[], Array]


class PiecedTensor:
    """A dense tensor as a leaf of a state that is to be committed; `load` of a piece is called for each of its chunks.

    Args:
        form: shape, dtype and strides; has no memory.
        pieces: boxes that together are the tensor, in any order.

    Raises:
        InvalidArgument: pieces that overlap, reach beyond the shape, or leave something out.
    """

    def __init__(self, form: Tensor, pieces: Iterable[TensorPiece]) -> None:
        self.form = form
        self._pieces = [piece for piece in pieces if prod(extents(piece.start, piece.stop))]
        self._starts, self._stops = _corners(self._pieces, form.ndim)
        self._check(tuple(form.shape))

    def box(self, start: Index, stop: Index) -> memoryview:
        """The row-major bytes of a box of the tensor."""
        touched = (self._starts < np.array(stop)) & (self._stops > np.array(start))
        found = [self._pieces[number] for number in np.flatnonzero(touched.all(1))]
        if len(found) == 1:
            return _part(found[0], start, stop)
        made = fresh(self.form.dtype, extents(start, stop))
        for piece in found:
            low, high = tuple(map(max, start, piece.start)), tuple(map(min, stop, piece.stop))
            write_box(made, _minus(low, start), _minus(high, start), _part(piece, low, high))
        return chunk_bytes(made, (0,) * made.ndim, tuple(made.shape))

    def _check(self, shape: Index) -> None:
        starts, stops = self._starts, self._stops
        if (starts < 0).any() or (stops < starts).any() or (stops > np.array(shape)).any():
            raise InvalidArgument(f"a piece reaches beyond the shape {list(shape)}")
        for number, start in enumerate(starts):
            later = slice(number + 1, None)
            if ((starts[later] < stops[number]) & (stops[later] > start)).all(1).any():
                raise InvalidArgument(f"the piece at {start.tolist()} overlaps another one")
        held = sum(prod(extents(piece.start, piece.stop)) for piece in self._pieces)
        if held != prod(shape):
            raise InvalidArgument(f"its pieces hold {held:,} of {prod(shape):,} elements")


class PiecedLeaf(TensorLeaf, frozen=True, eq=False):
    """A leaf whose bytes are brought when they are needed; `tensor` only has its form, and has no memory."""

    source: PiecedTensor

    def place(self) -> Hashable:
        return id(self.source)

    def box(self, start: Index, stop: Index) -> memoryview:
        return self.source.box(start, stop)


def _corners(pieces: Sequence[TensorPiece], dims: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if any(len(piece.start) != dims or len(piece.stop) != dims for piece in pieces):
        raise InvalidArgument(f"a piece has other dims than the {dims} of the tensor")
    corners = np.array([(piece.start, piece.stop) for piece in pieces], np.int64).reshape(len(pieces), 2, dims)
    return corners[:, 0], corners[:, 1]


def _part(piece: TensorPiece, start: Index, stop: Index) -> memoryview:
    return chunk_bytes(piece.load(), _minus(start, piece.start), _minus(stop, piece.start))


def _minus(one: Index, other: Index) -> Index:
    return tuple(a - b for a, b in zip(one, other, strict=True))
