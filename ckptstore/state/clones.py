"""Copies of dense arrays with the same bits, and the order of their dims in memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ckptstore.format.grid import Index
from ckptstore.state.addresses import lacks_address
from ckptstore.state.arrays import Array, as_opaque, as_words

_CLONED = {torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64}
"""Of these torch's own copies keep every bit."""


def clone(array: Array) -> Array:
    """Another array with the same bits and `memory_order`, which autograd does not track; on the host for XLA's."""
    if lacks_address(array):
        return torch.as_tensor(array).detach().cpu()
    plain = memory_order(array) is None
    if not isinstance(array, Tensor):
        return as_opaque(array).copy(order="C" if plain else "K").view(array.dtype)
    form = torch.contiguous_format if plain else torch.preserve_format
    if array.dtype in _CLONED and not array.is_neg():
        return array.detach().clone(memory_format=form)
    dense = array.detach().resolve_conj().resolve_neg()
    if dense.is_complex():
        return dense.clone(memory_format=form)
    return as_words(dense).clone(memory_format=form).view(dense.dtype)


def on_host(array: Array) -> Array:
    """The array, or its copy on the host if it lacks an address."""
    return clone(array) if lacks_address(array) else array


def memory_order(array: Array) -> Index | None:
    """Dims from the slowest to the fastest in memory, of a dense array that is not row-major; else None."""
    if isinstance(array, Tensor):
        if array.is_contiguous():
            return None
        strides = array.stride()
        unit = 1
    elif array.flags.c_contiguous:
        return None
    else:
        strides, unit = array.strides, array.itemsize
    order = _by_stride(tuple(array.shape), strides)
    for dim in reversed(order):
        if array.shape[dim] > 1:
            if strides[dim] != unit:
                return None
            unit *= array.shape[dim]
    return None if order == tuple(range(len(order))) else order


def _by_stride(shape: Index, strides: Index) -> Index:
    """Dims from the slowest; those of extent 1 stand behind the larger one whose stride is next above theirs."""

    def place(dim: int) -> tuple[float, bool, int]:
        if shape[dim] > 1:
            return -strides[dim], False, dim
        above = (stride for stride, extent in zip(strides, shape, strict=True) if extent > 1 and stride >= strides[dim])
        return -min(above, default=math.inf), True, dim

    return tuple(sorted(range(len(shape)), key=place))
