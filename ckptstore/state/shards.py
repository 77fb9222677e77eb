"""Tensors of which each process of a mesh has a part: torch's DTensors."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Collection, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import torch

from ckptstore.errors import StateError, UnsupportedLeaf
from ckptstore.format.grid import Index, extents
from ckptstore.format.selection import Selection, select_box
from ckptstore.state.arrays import as_tracked_like

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Region(NamedTuple):
    """A box of a whole tensor, and where it begins in the part that a process has."""

    start: Index
    stop: Index
    local: Index

    @property
    def selection(self) -> Selection:
        """Of the whole tensor."""
        return select_box(self.start, self.stop)

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """Its elements, as a view."""
        sizes = extents(self.start, self.stop)
        return part[tuple(slice(at, at + size) for at, size in zip(self.local, sizes, strict=True))]


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Whether it is a DTensor that has parts, as torch_xla's have not; nothing is imported to find out."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor) and hasattr(value, "_local_tensor")


def part_of(tensor: DTensor) -> torch.Tensor:
    """What this process has of it: the memory itself, which autograd does not track."""
    return tensor._local_tensor.detach()  # noqa: SLF001 - to_local() copies what is still on its way, and tracks it


def form_of(tensor: DTensor) -> DTensor:
    """The same without memory, which stays as it is now whatever becomes of the other."""
    part, kind = part_of(tensor), cast("Any", type(tensor))
    empty = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="meta")
    form = kind(empty, tensor._spec, requires_grad=False)  # noqa: SLF001 - from_local() takes milliseconds
    return cast("DTensor", as_tracked_like(form, tensor))


def regions_of(tensor: DTensor, path: str) -> list[Region]:
    """Where that lies in the whole tensor; several regions where shards are strided, none where there is none.

    Raises:
        UnsupportedLeaf: sums that are not added up yet.
        StateError: the part has another shape than its placements say.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedLeaf(path, "a DTensor that is Partial", "redistribute it first", use="store or fill")
    coordinate = tensor.device_mesh.get_coordinate()
    part = part_of(tensor)
    if coordinate is None:
        return []
    held = [_held(tensor, dim, coordinate) for dim in range(tensor.ndim)]
    shape = [len(places) for places in held]
    if list(part.shape) != shape:
        problem = f"this process has {list(part.shape)} of it, where {shape} go by its placements"
        raise StateError(f"{path!r}, a DTensor of shape {list(tensor.shape)}: {problem}")
    boxes = product(*map(_runs, held))
    return [Region(*_transposed(box)) for box in boxes] if prod(part.shape) else []


def is_keeper(tensor: DTensor, path: str, among: Collection[int]) -> bool:
    """Whether this process is the one, of those that have the same part, that stores it; they take turns by path.

    Only the ranks `among` store anything, by their numbers in the default group; this process is one of them.
    """
    mesh, coordinate = tensor.device_mesh.mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    mine = int(mesh[tuple(coordinate)])
    same = tuple(
        slice(None) if placement.is_replicate() else at
        for placement, at in zip(tensor.placements, coordinate, strict=True)
    )
    keepers = [rank for rank in mesh[same].flatten().tolist() if rank in among or rank == mine]
    return bool(keepers[zlib.crc32(path.encode()) % len(keepers)] == mine)


def members(tensor: DTensor) -> int:
    """A number for the ranks that have parts of it, in whatever order: another one for others."""
    return zlib.crc32(tensor.device_mesh.mesh.flatten().sort().values.numpy().tobytes())


def _held(tensor: DTensor, dim: int, coordinate: Sequence[int]) -> torch.Tensor:
    """The places along a dim that this process has, found as DTensor itself splits tensors."""
    places = torch.arange(tensor.shape[dim], device="cpu")
    for mesh_dim, placement in enumerate(tensor.placements):
        if getattr(placement, "dim", None) == dim:
            kind: Any = type(placement)
            along = kind(0, **_strides(placement))
            places = along._split_tensor(places, tensor.device_mesh.size(mesh_dim), with_padding=False)[0][  # noqa: SLF001 - torch has it nowhere else
                coordinate[mesh_dim]
            ]
    return places


def _strides(placement: Any) -> dict[str, int]:
    return {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}


def _runs(places: torch.Tensor) -> list[tuple[int, int, int]]:
    """Start, stop and place of what lies side by side."""
    cuts = ((places[1:] - places[:-1]) != 1).nonzero().flatten() + 1
    borders = [0, *cuts.tolist(), len(places)]
    return [(int(places[at]), int(places[end - 1]) + 1, at) for at, end in pairwise(borders) if at < end]


def _transposed(box: Sequence[tuple[int, int, int]]) -> tuple[Index, Index, Index]:
    start, stop, local = zip(*box, strict=True) if box else ((), (), ())
    return start, stop, local
