"""Dense arrays as bytes: torch tensors of every dtype, layout in memory and device, and numpy arrays.

Bytes are row-major and as they lie in memory: little-endian, or what a numpy dtype says. Most exotic dtypes lack
kernels, so that all copies go through integers of the same width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ckptstore.format.codecs.words import Plane
from ckptstore.format.grid import Index, box_index

Array = Tensor | np.ndarray[Any, Any]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def plain_bytes(array: Array) -> memoryview | None:
    """The array's own memory as bytes when it is row-major on the CPU, else None."""
    found = _plain_array(array)
    return None if found is None else found.data


def writable_array(array: Array) -> Plane | None:
    """`plain_bytes` as an array when these can be written, else None."""
    found = _plain_array(array)
    return None if found is None or not found.flags.writeable else found


def is_of_others(array: Array) -> bool:
    """Whether other processes may write to it, as `share_memory_` lets them."""
    return isinstance(array, Tensor) and array.is_cpu and array.untyped_storage().is_shared()


def chunk_bytes(array: Array, start: Index, stop: Index) -> memoryview:
    """The row-major bytes of `array[start:stop]`: the array's own memory when they lie there so, else one copy.

    Also a copy of what other processes may write to.
    """
    box = box_index(start, stop)
    if isinstance(array, Tensor):
        region = array.detach()[box].resolve_conj().resolve_neg()
        dense = as_words(region).contiguous().cpu().numpy()
        if is_of_others(array):
            dense = dense.copy()
    else:
        dense = np.ascontiguousarray(as_opaque(array)[box])
    return dense.reshape(-1).view(np.uint8).data if dense.nbytes else memoryview(b"")


def is_row_major(tensor: Tensor) -> bool:
    """Whether its memory holds its bytes in row-major order."""
    return tensor.is_contiguous() and not is_lazy(tensor)


def as_row_major(tensor: Tensor) -> Tensor:
    """The tensor itself when that is so, else a copy, on its device."""
    if is_row_major(tensor):
        return tensor
    return as_words(tensor.detach().resolve_conj().resolve_neg()).contiguous()


def flat_bytes(tensor: Tensor) -> Tensor:
    """The memory of a row-major tensor as uint8 in one dim."""
    words = as_words(tensor)
    return words.as_strided((words.numel(),), (1,)).view(torch.uint8)  # of one element, any stride is row-major


def write_box(array: Array, start: Index, stop: Index, data: memoryview) -> None:
    """Copy row-major bytes into `array[start:stop]`, whatever its layout and device."""
    box = box_index(start, stop)
    if not len(data):
        return
    if not isinstance(array, Tensor):
        _fill(as_opaque(array)[box], data)
        return
    region = array.detach()[box]
    if region.is_cpu and not is_lazy(region):
        _fill(as_words(region).numpy(), data)
        return
    copied = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    _fill(copied.numpy(), data)
    copy_into_box(array, start, stop, copied)


def copy_into_box(tensor: Tensor, start: Index, stop: Index, data: Tensor) -> None:
    """Copy row-major bytes of the host into `tensor[start:stop]`; nothing waits where the device can do without."""
    region = tensor.detach()[box_index(start, stop)]
    dense = data.view(region.dtype).view(region.shape)
    if is_lazy(region):
        region.copy_(dense, non_blocking=True)
    else:
        as_words(region).copy_(as_words(dense), non_blocking=True)


def as_tracked(tensor: Tensor, *, parameter: bool, requires_grad: bool) -> Tensor:
    """`tensor` as a Parameter, or tracked by autograd."""
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def as_tracked_like(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` as a Parameter, or tracked by autograd, where `like` is."""
    return as_tracked(tensor, parameter=isinstance(like, torch.nn.Parameter), requires_grad=like.requires_grad)


def mark_changed(array: Array) -> None:
    """Tell torch that an array is about to be written behind its back."""
    if isinstance(array, Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def is_lazy(tensor: Tensor) -> bool:
    """Whether torch has yet to conjugate or negate what lies in its memory."""
    return tensor.is_conj() or tensor.is_neg()


def as_words(tensor: Tensor) -> Tensor:
    """The same memory as integers; those of 16-byte elements have one more dim."""
    tensor = tensor.detach()
    if tensor.dtype is torch.complex128:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.view(_WORDS[tensor.itemsize])


def as_opaque(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory as opaque elements, of which numpy copies every byte."""
    return array.view(np.dtype((np.void, array.itemsize)))


def _plain_array(array: Array) -> Plane | None:
    if isinstance(array, Tensor):
        if not array.is_cpu or not is_row_major(array):
            return None
        words = as_words(array).numpy()
    elif array.flags.c_contiguous:
        words = array
    else:
        return None
    return words.reshape(-1).view(np.uint8) if words.nbytes else np.empty(0, np.uint8)


def _fill(words: np.ndarray[Any, Any], data: memoryview) -> None:
    words[...] = np.frombuffer(data, words.dtype).reshape(words.shape)
