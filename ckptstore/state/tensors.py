"""Dense arrays as leaves of a state, and whether a target can take one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from ckptstore.errors import UnsupportedLeaf
from ckptstore.format.codecs import Form
from ckptstore.format.grid import Index
from ckptstore.format.manifest import TensorEntry, is_storable
from ckptstore.state.addresses import overlaps_itself, same_place
from ckptstore.state.arrays import Array, chunk_bytes
from ckptstore.state.clones import memory_order
from ckptstore.state.dtypes import dtype_name, number_form


class TensorLeaf(msgspec.Struct, frozen=True, eq=False):
    """A dense array of an app state, with the fields that its `entry` has."""

    tensor: Array

    @property
    def library(self) -> Literal["torch", "numpy"]:
        """Whose array it is."""
        return "torch" if isinstance(self.tensor, Tensor) else "numpy"

    @property
    def dtype(self) -> str:
        """Name of the dtype, see `dtypes.dtype_name`."""
        return dtype_name(self.tensor.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.tensor.itemsize

    @property
    def form(self) -> Form:
        """What its bytes are, for codecs."""
        return number_form(self.tensor.dtype)

    @property
    def shape(self) -> Index:
        """Extents of the dims."""
        return tuple(self.tensor.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements that it shows."""
        return self.tensor.nbytes

    @property
    def order(self) -> Index | None:
        """See `memory_order`."""
        return memory_order(self.tensor)

    @property
    def requires_grad(self) -> bool:
        """Whether autograd tracks it."""
        return isinstance(self.tensor, Tensor) and self.tensor.requires_grad

    @property
    def parameter(self) -> bool:
        """Whether it is an `nn.Parameter`."""
        return isinstance(self.tensor, torch.nn.Parameter)

    def entry(self, chunk_shape: Index, *, inline: bytes = b"") -> TensorEntry:
        """Its entry in a manifest, as yet without chunks."""
        return TensorEntry(
            library=self.library,
            dtype=self.dtype,
            itemsize=self.itemsize,
            shape=self.shape,
            chunk_shape=chunk_shape,
            inline=inline,
            order=self.order,
            requires_grad=self.requires_grad,
            parameter=self.parameter,
        )

    def place(self) -> Hashable:
        """`same_place` of the live array."""
        return same_place(self.tensor)

    def box(self, start: Index, stop: Index) -> memoryview:
        """The row-major bytes of `tensor[start:stop]`."""
        return chunk_bytes(self.tensor, start, stop)

    def row_major(self) -> memoryview:
        """All of its bytes."""
        return self.box((0,) * len(self.shape), self.shape)


def require_storable(path: str, itemsize: int, shape: Index) -> None:
    """Raises UnsupportedLeaf for a tensor that torch has and numpy has not."""
    if not is_storable(itemsize, shape):
        kind = f"a tensor of shape {list(shape)}"
        advice = "numpy has none of more than 64 dims, or whose dims other than 0 make 2^63 bytes: reshape it"
        raise UnsupportedLeaf(path, kind, advice)


def misfit_of(path: str, entry: TensorEntry, target: object) -> str | None:
    """What keeps a target from taking an entry's bytes in place, or None."""
    if not isinstance(target, Tensor | np.ndarray):
        return f"{path}: {described(entry)} in the commit, a {type(target).__name__} in the target"
    leaf = TensorLeaf(target)
    if (leaf.library, leaf.dtype, leaf.shape) != (entry.library, entry.dtype, entry.shape):
        return f"{path}: {described(entry)} in the commit, {described(leaf)} in the target"
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        return f"{path}: the target is read-only"
    if leaf.nbytes and overlaps_itself(target):
        return f"{path}: elements of the target share memory, as in an expanded tensor"
    return None


def described(leaf: TensorEntry | TensorLeaf) -> str:
    """How messages describe dtype and shape."""
    library = "" if leaf.library == "torch" else "numpy "
    return f"{library}{leaf.dtype}{list(leaf.shape)}"
