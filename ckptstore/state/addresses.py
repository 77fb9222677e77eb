"""Where dense arrays lie in memory, and which of them show the same memory."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ckptstore.state.arrays import Array, as_words, is_lazy
from ckptstore.state.dtypes import dtype_name

_MOST_WORK = 1 << 20
_FREED = "a tensor whose storage was freed", "bring its memory back first"
_WRAPPED = "a tensor without memory of its own, as torch.func makes them", "do this outside of its functions"


def pointer(array: Array) -> int:
    """Where the first element lies: equal for arrays with the same `identity`. It may be 0, see `lacks_address`."""
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data


def lacks_address(array: Array) -> bool:
    """Whether it has elements, but at no address that is known, as XLA's.

    Nothing says then whether two tensors are one, and each piece that is read or written is a program to compile.
    """
    return bool(array.nbytes) and not pointer(array)


def same_place(array: Array) -> Hashable:
    """Equal for two arrays that are one memory, whether or not autograd tracks them; lasts as long as the arrays."""
    address = pointer(array)
    if not address or not array.nbytes:
        return id(array)
    if isinstance(array, Tensor):
        return address, array.shape, array.stride(), array.dtype, array.device, array.is_conj(), array.is_neg()
    return address, array.shape, array.strides, dtype_name(array.dtype)


def identity(array: Array) -> Hashable:
    """Equal for two arrays that show the same memory in the same way; lasts as long as the arrays."""
    place = same_place(array)
    return (place, array.requires_grad, type(array)) if isinstance(array, Tensor) else place


def share_memory(one: Array, other: Array) -> bool:
    """Whether an element of one is part of an element of the other; false where only a device could tell."""
    try:
        return np.shares_memory(elements(one), elements(other), max_work=_MOST_WORK)  # type: ignore[arg-type] # the stubs know only -1 and 0
    except np.exceptions.TooHardError:
        return False


def byte_range(array: Array) -> tuple[int, int]:
    """The first byte of an array in memory, and one past its last."""
    if isinstance(array, Tensor) and array.is_contiguous():
        return array.data_ptr(), array.data_ptr() + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(elements(array))
    return int(low), int(high)


def is_backed(tensor: Tensor) -> bool:
    """Whether the storage reaches as far as the tensor does; sharding frees storages that tensors still show."""
    if not tensor.nbytes:
        return True
    if tensor.is_contiguous():
        reach = tensor.nbytes
    else:
        last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
        reach = (last + 1) * tensor.itemsize
    return tensor.storage_offset() * tensor.itemsize + reach <= tensor.untyped_storage().nbytes()


def missing_memory(tensor: Tensor) -> tuple[str, str] | None:
    """What a dense tensor is that has no memory, and what to do about that; None for others, also XLA's."""
    try:
        if not is_backed(tensor):
            return _FREED
        tensor.data_ptr()  # raises for what grad and vmap wrap
        return _WRAPPED if torch._is_functional_tensor(tensor) else None  # noqa: SLF001 - has no public name
    except RuntimeError:  # as torch raises for what has no storage, even an empty one
        return _WRAPPED


def is_plain_memory(array: Array) -> bool:
    """Whether numpy can look at where the elements lie."""
    return bool(array.nbytes) and (not isinstance(array, Tensor) or array.is_cpu)


def lies_in(data: memoryview, array: Array) -> bool:
    """Whether bytes are the array's own memory, of the host."""
    if not data.nbytes or not is_plain_memory(array):
        return False
    low, high = byte_range(array)
    return low <= np.frombuffer(data, np.uint8).ctypes.data < high


def overlaps_itself(array: Array) -> bool:
    """Whether elements share memory, as in an expanded tensor. Of strides that are not nested, that is assumed."""
    if isinstance(array, Tensor) and array.is_contiguous():
        return False
    strides, unit = (array.stride(), 1) if isinstance(array, Tensor) else (array.strides, array.itemsize)
    dims = sorted((abs(stride), extent) for stride, extent in zip(strides, array.shape, strict=True) if extent > 1)
    covered = unit
    for stride, extent in dims:
        if stride < covered:
            return True
        covered += (extent - 1) * stride
    return False


def elements(array: Array) -> np.ndarray[Any, Any]:
    """The elements as numpy sees them where they lie: those of a tensor are words."""
    return as_words(_bare(array) if is_lazy(array) else array).numpy() if isinstance(array, Tensor) else array


def _bare(tensor: Tensor) -> Tensor:
    """The same memory as it lies, neither conjugated nor negated."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
