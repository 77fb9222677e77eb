"""Dense arrays as bytes: torch tensors of every dtype, layout in memory and device, and numpy arrays.

Bytes are row-major and as they lie in memory: little-endian, or what a numpy dtype says. Most exotic dtypes lack
kernels, so that all copies go through integers of the same width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from ckptstore.errors import UnsupportedLeaf
from ckptstore.format.codecs import Form
from ckptstore.format.codecs.words import Plane
from ckptstore.format.grid import Index, box_index
from ckptstore.format.manifest import TensorEntry, is_storable
from ckptstore.state.dtypes import dtype_name, number_form

Array = Tensor | np.ndarray[Any, Any]

_MOST_WORK = 1 << 20
_CLONED = {torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64}
"""Of these torch's own copies keep every bit."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorLeaf(msgspec.Struct, frozen=True, eq=False):
    """A dense array of an app state, with the fields that its `TensorEntry` will have."""

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
        """Dims from the slowest to the fastest in memory, for a dense array that is not row-major."""
        return _order(self.tensor)

    @property
    def requires_grad(self) -> bool:
        """Whether autograd tracks it."""
        return isinstance(self.tensor, Tensor) and self.tensor.requires_grad

    @property
    def parameter(self) -> bool:
        """Whether it is an `nn.Parameter`."""
        return isinstance(self.tensor, torch.nn.Parameter)

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


def plain_bytes(array: Array) -> memoryview | None:
    """The array's own memory as bytes when it is row-major on the CPU, else None."""
    found = _plain_array(array)
    return None if found is None else found.data


def _plain_array(array: Array) -> Plane | None:
    if isinstance(array, Tensor):
        if not array.is_cpu or not is_row_major(array):
            return None
        words = _words(array).numpy()
    elif array.flags.c_contiguous:
        words = array
    else:
        return None
    return words.reshape(-1).view(np.uint8) if words.nbytes else np.empty(0, np.uint8)


def writable_array(array: Array) -> Plane | None:
    """`plain_bytes` as an array when these can be written, else None."""
    found = _plain_array(array)
    return None if found is None or not found.flags.writeable else found


def chunk_bytes(array: Array, start: Index, stop: Index) -> memoryview:
    """The row-major bytes of `array[start:stop]`: the array's own memory when they lie there so, else one copy."""
    box = box_index(start, stop)
    if isinstance(array, Tensor):
        region = array.detach()[box].resolve_conj().resolve_neg()
        dense = _words(region).contiguous().cpu().numpy()
    else:
        dense = np.ascontiguousarray(_void(array)[box])
    return dense.reshape(-1).view(np.uint8).data if dense.nbytes else memoryview(b"")


def is_row_major(tensor: Tensor) -> bool:
    """Whether its memory holds its bytes in row-major order."""
    return tensor.is_contiguous() and not _is_lazy(tensor)


def as_row_major(tensor: Tensor) -> Tensor:
    """The tensor itself when that is so, else a copy, on its device."""
    if is_row_major(tensor):
        return tensor
    return _words(tensor.detach().resolve_conj().resolve_neg()).contiguous()


def flat_bytes(tensor: Tensor) -> Tensor:
    """The memory of a row-major tensor as uint8 in one dim."""
    words = _words(tensor)
    return words.as_strided((words.numel(),), (1,)).view(torch.uint8)  # of one element, any stride is row-major


def write_box(array: Array, start: Index, stop: Index, data: memoryview) -> None:
    """Copy row-major bytes into `array[start:stop]`, whatever its layout and device."""
    box = box_index(start, stop)
    if not len(data):
        return
    if not isinstance(array, Tensor):
        _fill(_void(array)[box], data)
        return
    region = array.detach()[box]
    if region.is_cpu and not _is_lazy(region):
        _fill(_words(region).numpy(), data)
        return
    copied = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    _fill(copied.numpy(), data)
    copy_into_box(array, start, stop, copied)


def copy_into_box(tensor: Tensor, start: Index, stop: Index, data: Tensor) -> None:
    """Copy row-major bytes of the host into `tensor[start:stop]`; nothing waits where the device can do without."""
    region = tensor.detach()[box_index(start, stop)]
    dense = data.view(region.dtype).view(region.shape)
    if _is_lazy(region):
        region.copy_(dense, non_blocking=True)
    else:
        _words(region).copy_(_words(dense), non_blocking=True)


def as_tracked(tensor: Tensor, *, parameter: bool, requires_grad: bool) -> Tensor:
    """`tensor` as a Parameter, or tracked by autograd."""
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def clone(array: Array) -> Array:
    """Another array with the same bits and `order` in memory, which autograd does not track; on the host for XLA's."""
    if lacks_address(array):
        return torch.as_tensor(array).detach().cpu()
    plain = _order(array) is None
    if not isinstance(array, Tensor):
        return _void(array).copy(order="C" if plain else "K").view(array.dtype)
    form = torch.contiguous_format if plain else torch.preserve_format
    if array.dtype in _CLONED and not array.is_neg():
        return array.detach().clone(memory_format=form)
    dense = array.detach().resolve_conj().resolve_neg()
    if dense.is_complex():
        return dense.clone(memory_format=form)
    return _words(dense).clone(memory_format=form).view(dense.dtype)


def check_fits(path: str, entry: TensorEntry, target: object) -> str | None:
    """What keeps a target from taking an entry's bytes in place, or None."""
    if not isinstance(target, Tensor | np.ndarray):
        return f"{path}: {described(entry)} in the commit, a {type(target).__name__} in the target"
    leaf = TensorLeaf(target)
    if (leaf.library, leaf.dtype, leaf.shape) != (entry.library, entry.dtype, entry.shape):
        return f"{path}: {described(entry)} in the commit, {described(leaf)} in the target"
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        return f"{path}: the target is read-only"
    if leaf.nbytes and _overlaps_itself(target):
        return f"{path}: elements of the target share memory, as in an expanded tensor"
    return None


def mark_changed(array: Array) -> None:
    """Tell torch that an array is about to be written behind its back."""
    if isinstance(array, Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def same_place(array: Array) -> Hashable:
    """Equal for two arrays that are one memory, whether or not autograd tracks them; lasts as long as the arrays."""
    address = pointer(array)
    if not address or not array.nbytes:
        return id(array)
    if isinstance(array, Tensor):
        return address, array.shape, array.stride(), array.dtype, array.device, array.is_conj(), array.is_neg()
    return address, array.shape, array.strides, dtype_name(array.dtype)


def share_memory(one: Array, other: Array) -> bool:
    """Whether an element of one is part of an element of the other; false where only a device could tell."""
    try:
        return np.shares_memory(_as_numpy(one), _as_numpy(other), max_work=_MOST_WORK)  # type: ignore[arg-type] # the stubs know only -1 and 0
    except np.exceptions.TooHardError:
        return False


def byte_range(array: Array) -> tuple[int, int]:
    """The first byte of an array in memory, and one past its last."""
    if isinstance(array, Tensor) and array.is_contiguous():
        return array.data_ptr(), array.data_ptr() + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(_as_numpy(array))
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


def pointer(array: Array) -> int:
    """Where the first element lies: equal for arrays with the same `identity`. It may be 0, see `lacks_address`."""
    return array.data_ptr() if isinstance(array, Tensor) else array.ctypes.data


def lacks_address(array: Array) -> bool:
    """Whether it has elements, but they lie nowhere that can be told, as XLA's.

    Nothing says then whether two tensors are one, and each piece that is read or written is a program to compile.
    """
    return bool(array.nbytes) and not pointer(array)


def on_host(array: Array) -> Array:
    """The array, or its copy on the host if it lacks an address."""
    return clone(array) if lacks_address(array) else array


def identity(array: Array) -> Hashable:
    """Equal for two arrays that show the same memory in the same way; lasts as long as the arrays."""
    place = same_place(array)
    return (place, array.requires_grad, type(array)) if isinstance(array, Tensor) else place


def is_plain_memory(array: Array) -> bool:
    """Whether numpy can look at where the elements lie."""
    return bool(array.nbytes) and (not isinstance(array, Tensor) or array.is_cpu)


def _as_numpy(array: Array) -> np.ndarray[Any, Any]:
    return _words(_bare(array) if _is_lazy(array) else array).numpy() if isinstance(array, Tensor) else array


def _bare(tensor: Tensor) -> Tensor:
    """The same memory as it lies, neither conjugated nor negated."""
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _overlaps_itself(array: Array) -> bool:
    """Sufficient, not necessary: strides that are not nested count as overlapping."""
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


def described(leaf: TensorEntry | TensorLeaf) -> str:
    """How messages tell dtype and shape."""
    library = "" if leaf.library == "torch" else "numpy "
    return f"{library}{leaf.dtype}{list(leaf.shape)}"


def _is_lazy(tensor: Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _words(tensor: Tensor) -> Tensor:
    """The same memory as integers; those of 16-byte elements have one more dim."""
    tensor = tensor.detach()
    if tensor.dtype is torch.complex128:
        return torch.view_as_real(tensor).view(torch.int64)
    return tensor.view(_WORDS[tensor.itemsize])


def _void(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same memory as opaque elements, of which numpy copies every byte."""
    return array.view(np.dtype((np.void, array.itemsize)))


def _fill(words: np.ndarray[Any, Any], data: memoryview) -> None:
    words[...] = np.frombuffer(data, words.dtype).reshape(words.shape)


def _order(array: Array) -> Index | None:
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
