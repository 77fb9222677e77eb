"""The tensors that a planner gives. What lies on devices stays there where it did not change since the last save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from ckptstore.cached import cached_property
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import StateError, UnsupportedLeaf
from ckptstore.locks import Lock
from ckptstore.operations.ranks.dealing import Shard
from ckptstore.operations.ranks.parts import Part
from ckptstore.state.clones import on_host
from ckptstore.state.composites import is_dense, require_memory
from ckptstore.state.devices.staging import DeviceStager
from ckptstore.state.tensors import TensorLeaf, require_storable

_STAGERS: dict[str, DeviceStager] = {}
"""By the id of a store: a writer, and an open store, may be made anew for every save."""
_STAGERS_LOCK = Lock()


class Sources:
    """Of one save.

    Args:
        items: those of the plan that are tensors.
        planner: is asked once for each of them, when the first one is needed.
        chunks: gives the store.
    """

    def __init__(self, items: Sequence[WriteItem], planner: SavePlanner, chunks: Callable[[], ChunkStore]) -> None:
        self._items, self._planner, self._chunks = items, planner, chunks

    def parts(self) -> list[Part]:
        """For each item."""
        return [_part(item, partial(self._leaf, item.index)) for item in self._items]

    def _leaf(self, index: MetadataIndex) -> TensorLeaf:
        return self._leaves[index]

    @cached_property
    def _leaves(self) -> dict[MetadataIndex, TensorLeaf]:
        found = {item.index: _resolved(item, self._planner) for item in self._items}
        named = {_name(index): TensorLeaf(tensor) for index, tensor in found.items()}
        there = _stager(self._chunks().config.id).stage(named, apart=False)
        return {index: there.get(_name(index)) or TensorLeaf(on_host(tensor)) for index, tensor in found.items()}


def _stager(store_id: str) -> DeviceStager:
    with _STAGERS_LOCK:
        return _STAGERS.setdefault(store_id, DeviceStager())


def _name(index: MetadataIndex) -> str:
    return f"{index.fqn} {tuple(index.offset or ())}"


def _part(item: WriteItem, resolve: Callable[[], TensorLeaf]) -> Part:
    form = item.tensor_data
    assert form is not None
    start, dtype = tuple(form.chunk.offsets), form.properties.dtype
    require_storable(item.index.fqn, dtype.itemsize, tuple(form.size))
    stop = tuple(low + extent for low, extent in zip(start, form.chunk.sizes, strict=True))
    return Part(Shard(item.index.fqn, dtype.itemsize, tuple(form.size), start, stop), dtype, resolve)


def _resolved(item: WriteItem, planner: SavePlanner) -> Tensor:
    """Raises StateError when its tensor is not what was planned, UnsupportedLeaf for one that is not dense."""
    form, path, found = item.tensor_data, item.index.fqn, planner.resolve_data(item)
    assert form is not None
    assert isinstance(found, Tensor)
    require_memory(found, path)
    if not is_dense(found):
        kind = "a quantized tensor" if found.is_quantized else f"a tensor of layout {found.layout}"
        raise UnsupportedLeaf(path, kind, "save its dense parts")
    sizes, dtype = list(form.chunk.sizes), form.properties.dtype
    if list(found.shape) != sizes or found.dtype != dtype:
        there = f"{found.dtype} of {list(found.shape)}"
        raise StateError(f"{path!r}: {dtype} of shape {sizes} was planned, but there is {there}")
    return found
