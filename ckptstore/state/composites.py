"""Tensors that are made of dense ones: sparse and quantised. The parts share memory with the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ckptstore.errors import UnsupportedLeaf
from ckptstore.format.manifest import Container
from ckptstore.state.arrays import as_tracked
from ckptstore.state.dtypes import dtype_name, torch_dtype

_COMPRESSED: dict[torch.layout, tuple[str, str, str]] = {
    torch.sparse_csr: ("sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsr: ("sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_bsc: ("sparse_bsc", "ccol_indices", "row_indices"),
}
_COMPRESSED_LAYOUTS = {names[0]: layout for layout, names in _COMPRESSED.items()}
_QUANTISED_AS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
COMPRESSED = frozenset(_COMPRESSED_LAYOUTS)
KINDS = COMPRESSED | {"sparse_coo", "quantized_per_tensor", "quantized_per_channel"}

Opened = tuple[Container, Sequence[Tensor]]


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory with strides."""
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and not tensor.is_meta and not tensor.is_nested


def require_memory(tensor: Tensor, path: str) -> None:
    """Raises UnsupportedLeaf for a tensor on the meta device."""
    if tensor.is_meta:
        advice = "it has no memory: call its module's to_empty(device=…) first, or make it on another device"
        raise UnsupportedLeaf(path, "a tensor on the meta device", advice, use="store or fill")


def open_composite(tensor: Tensor, path: str) -> Opened:
    """A tensor that is not dense, as a container of dense ones. Raises UnsupportedLeaf."""
    require_memory(tensor, path)
    bare = tensor.detach()
    if tensor.is_quantized:
        opened = _open_quantised(bare, path)
    elif tensor.layout is torch.sparse_coo:
        attributes = {"size": list(bare.shape), "coalesced": bare.is_coalesced()}
        opened = _container("sparse_coo", attributes, indices=bare._indices(), values=bare._values())  # noqa: SLF001 - also of one not coalesced
    elif tensor.layout in _COMPRESSED:
        opened = _open_compressed(bare)
    else:
        raise unsupported(tensor, path)
    if tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
        tracked = {"requires_grad": tensor.requires_grad, "parameter": isinstance(tensor, torch.nn.Parameter)}
        opened[0].attributes.update(tracked)
    return opened


def unsupported(tensor: Tensor, path: str) -> UnsupportedLeaf:
    """What to raise for a tensor that is neither dense nor made of dense ones."""
    if tensor.is_nested:
        advice = "store the list that its unbind() gives, or pass allow_pickle=True"
        return UnsupportedLeaf(path, "a nested tensor", advice)
    form = str(tensor.layout).removeprefix("torch.")
    return UnsupportedLeaf(path, f"a tensor of layout {form}", "convert it to a dense one")


def build_composite(path: str, container: Container, parts: Mapping[str, Any]) -> Tensor:
    """The tensor of a container and its parts."""
    attributes = container.attributes
    if container.kind == "sparse_coo":
        coalesced = attributes["coalesced"]
        size = attributes["size"]
        indices, values = parts["indices"], parts["values"]
        made = torch.sparse_coo_tensor(
            indices, values, size, device=values.device, is_coalesced=coalesced, check_invariants=True
        )
    elif container.kind in _COMPRESSED_LAYOUTS:
        layout = _COMPRESSED_LAYOUTS[container.kind]
        _, compressed, plain = _COMPRESSED[layout]
        indices, values = (parts[compressed], parts[plain]), parts["values"]
        made = torch.sparse_compressed_tensor(
            *indices, values, attributes["size"], layout=layout, device=values.device, check_invariants=True
        )
    else:
        made = _build_quantised(path, container, parts)
    return as_tracked(
        made, parameter=attributes.get("parameter", False), requires_grad=attributes.get("requires_grad", False)
    )


def _open_compressed(tensor: Tensor) -> Opened:
    kind, compressed, plain = _COMPRESSED[tensor.layout]
    indices = {compressed: getattr(tensor, compressed)(), plain: getattr(tensor, plain)()}
    return _container(kind, {"size": list(tensor.shape)}, **indices, values=tensor.values())


def _open_quantised(tensor: Tensor, path: str) -> Opened:
    if tensor.dtype not in _QUANTISED_AS:
        raise UnsupportedLeaf(path, f"a tensor of dtype {dtype_name(tensor.dtype)}", "store its int_repr() and scales")
    scheme = _scheme(tensor, path)
    integers = torch.empty(0, dtype=_QUANTISED_AS[tensor.dtype], device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    attributes: dict[str, Any] = {"dtype": dtype_name(tensor.dtype)}
    if scheme is torch.per_tensor_affine:
        attributes |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
        return _container("quantized_per_tensor", attributes, int_repr=integers)
    attributes["axis"] = tensor.q_per_channel_axis()
    scales, zero_points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return _container("quantized_per_channel", attributes, int_repr=integers, scales=scales, zero_points=zero_points)


def _scheme(tensor: Tensor, path: str) -> torch.qscheme:
    try:
        return tensor.qscheme()
    except RuntimeError:
        what, advice = "a quantised tensor without a scale", "make it by torch.quantize_per_tensor"
        raise UnsupportedLeaf(path, what, advice, use="store or fill") from None


def _build_quantised(path: str, container: Container, parts: Mapping[str, Any]) -> Tensor:
    attributes, integers = container.attributes, parts["int_repr"]
    made: Tensor
    dtype = torch_dtype(path, attributes["dtype"])
    _check_quantised(container, dtype, integers, parts)
    if container.kind == "quantized_per_tensor":
        scale, zero_point = attributes["scale"], attributes["zero_point"]
        made = torch._empty_affine_quantized(  # noqa: SLF001 - takes its bytes below
            integers.shape,
            scale=scale,
            zero_point=zero_point,
            dtype=dtype,
            device=integers.device,
        )
    else:
        made = torch._empty_per_channel_affine_quantized(  # noqa: SLF001 - likewise
            integers.shape,
            scales=parts["scales"],
            zero_points=parts["zero_points"],
            axis=attributes["axis"],
            dtype=dtype,
            device=integers.device,
        )
    return made.set_(integers.untyped_storage(), integers.storage_offset(), integers.shape, integers.stride())


def _check_quantised(container: Container, dtype: torch.dtype, integers: Tensor, parts: Mapping[str, Any]) -> None:
    """Raises ValueError for parts that do not belong together, which torch would take without a look."""
    if integers.dtype is not _QUANTISED_AS.get(dtype):
        raise ValueError(f"integers of {integers.dtype} are no {dtype}")
    if container.kind == "quantized_per_channel":
        axis = container.attributes["axis"]
        channels = integers.shape[axis]
        if axis < 0 or not parts["scales"].shape == parts["zero_points"].shape == (channels,):
            raise ValueError(f"it does not have a scale and a zero point for each of its {channels} channels")


def _container(kind: str, attributes: dict[str, Any], **parts: Tensor) -> Opened:
    return Container(kind, tuple(parts), attributes=attributes), tuple(parts.values())
