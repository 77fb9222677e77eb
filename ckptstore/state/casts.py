"""Elements of one dtype into arrays of another, as `Tensor.copy_` casts them; torch casts numpy's too."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from ckptstore.format.grid import Division, Grid, Index, box_index, default_chunk_shape, extents
from ckptstore.format.manifest import TensorEntry
from ckptstore.state.arrays import Array, plain_bytes, write_box
from ckptstore.state.dtypes import known_numpy_dtype, known_torch_dtype
from ckptstore.state.new_arrays import fresh
from ckptstore.state.tensors import TensorLeaf, misfit_of

_SLICES = Division(1 << 17, halved=False)
"""So many bytes are cast at a time, which stay in a core's cache."""


def misfit_with_cast(path: str, entry: TensorEntry, target: object, *, allow_cast: bool) -> str | None:
    """What keeps a target from taking an entry's elements in place, or None; names `allow_cast` where that helps."""
    misfit = misfit_of(path, entry, target)
    if misfit is None or not isinstance(target, torch.Tensor | np.ndarray) or not _is_castable(entry, target):
        return misfit
    if not allow_cast:
        return f"{misfit}: pass allow_cast=True to cast it"
    leaf = TensorLeaf(target)
    return misfit_of(path, replace(entry, library=leaf.library, dtype=leaf.dtype), target)


def cast_from(entry: TensorEntry, target: Array) -> torch.dtype | None:
    """The dtype of the entry when it is another than that of the target, which takes it; else None."""
    leaf = TensorLeaf(target)
    return None if (leaf.library, leaf.dtype) == (entry.library, entry.dtype) else _in_torch(entry.library, entry.dtype)


def write_cast(array: Array, start: Index, stop: Index, data: memoryview, dtype: torch.dtype | None) -> None:
    """`write_box`, of row-major elements of `dtype` unless that is None."""
    if dtype is None:
        write_box(array, start, stop, data)
        return
    leaf, shape = TensorLeaf(array), extents(start, stop)
    to = _in_torch(leaf.library, leaf.dtype)
    elements = np.frombuffer(data, f"V{dtype.itemsize}").reshape(shape)
    slices = Grid(shape, default_chunk_shape(shape, max(dtype.itemsize, array.itemsize), _SLICES))
    for number in range(len(slices)):
        low, high = slices.box(number)
        cast = _words(elements[box_index(low, high)]).view(dtype).to(to)
        content = plain_bytes(cast)
        assert content is not None
        write_box(array, _moved(start, low), _moved(start, high), content)


def can_cast(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether torch casts one to the other, and no imaginary parts are lost."""
    return source.is_complex <= target.is_complex and _has_kernel(source, target)


@lru_cache(1024)
def _has_kernel(source: torch.dtype, target: torch.dtype) -> bool:
    try:
        fresh(source, (1,)).to(target)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _is_castable(entry: TensorEntry, target: Array) -> bool:
    """Whether nothing but the dtype is another, or the library, and torch can cast it."""
    leaf = TensorLeaf(target)
    source, to = _in_torch(entry.library, entry.dtype), _in_torch(leaf.library, leaf.dtype)
    if source is None or to is None or source.itemsize != entry.itemsize:
        return False
    alike = (entry.library, entry.dtype) == (leaf.library, leaf.dtype)
    return entry.shape == leaf.shape and not alike and can_cast(source, to)


@lru_cache(1024)
def _in_torch(library: str, name: str) -> torch.dtype | None:
    """The dtype of torch that has the same numbers in the same bytes."""
    if library == "torch":
        return known_torch_dtype(name)
    found = known_numpy_dtype(name)
    try:
        return None if found is None else torch.from_numpy(np.empty(0, found)).dtype
    except (TypeError, ValueError):
        return None


def _words(elements: np.ndarray[Any, Any]) -> torch.Tensor:
    """A copy, since what was read may begin at any byte."""
    return torch.from_numpy(elements.copy().reshape(-1).view(np.uint8))


def _moved(place: Index, by: Index) -> Index:
    return tuple(map(sum, zip(place, by, strict=True)))
