"""Arrays that are made anew, as an entry describes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ckptstore.errors import CorruptData, StateError
from ckptstore.format.manifest import TensorEntry
from ckptstore.state.arrays import Array, as_tracked
from ckptstore.state.dtypes import dtype_name, numpy_dtype, torch_dtype
from ckptstore.state.tensors import described


def allocate(path: str, entry: TensorEntry) -> Array:
    """An array of an entry's dtype, shape and order in memory, with undefined content.

    Raises UnknownType, CorruptData, and StateError where there is no memory for it.
    """
    order = entry.order or tuple(range(len(entry.shape)))
    extents = [entry.shape[dim] for dim in order]
    places = sorted(range(len(order)), key=order.__getitem__)
    try:
        if entry.library == "torch":
            made: Array = fresh(torch_dtype(path, entry.dtype), extents).permute(places)
        else:
            made = np.empty(extents, numpy_dtype(path, entry.dtype)).transpose(places)
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
        raise StateError(f"{path!r}: no memory for {described(entry)}: {error}") from error
    if made.itemsize != entry.itemsize or dtype_name(made.dtype) != entry.dtype:
        raise CorruptData(f"{path!r}: its entry says that a {entry.dtype} has {entry.itemsize} bytes: run verify")
    return made


def fresh(dtype: torch.dtype, extents: Sequence[int]) -> Tensor:
    """As `torch.empty`, which with deterministic algorithms fills what it gives, and does not know all dtypes then."""
    storage = torch.UntypedStorage(math.prod(extents) * dtype.itemsize, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).view(dtype).view(torch.Size(extents))


def finish(path: str, array: Array, entry: TensorEntry) -> Array:
    """What an entry was: the filled array as a Parameter, or tracked by autograd. Raises CorruptData."""
    if not isinstance(array, Tensor):
        return array
    try:
        return as_tracked(array, parameter=entry.parameter, requires_grad=entry.requires_grad)
    except RuntimeError as error:
        raise CorruptData(
            f"{path!r}: its entry says that {described(entry)} is tracked by autograd: {error}"
        ) from error
