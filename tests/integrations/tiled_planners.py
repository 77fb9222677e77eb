"""Planners that are as particular as torch_xla's: a process has all tiles of a tensor, and gives each once."""

from __future__ import annotations

import io
import itertools
import threading
from dataclasses import replace

import torch
from torch.distributed.checkpoint.default_planner import (
    create_default_global_load_plan,
    create_default_global_save_plan,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


class Far(torch.Tensor):
    """Lies on a device that tells no addresses; counts how often it is written."""

    writes = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def data_ptr(self):
        return 0

    def detach(self):
        return self

    def cpu(self, memory_format=torch.preserve_format):
        return self.as_subclass(torch.Tensor).clone()

    def copy_(self, other, non_blocking=False):
        self.writes += 1
        return super().copy_(other, non_blocking)


def tiles_of(shape, counts):
    """As XLA cuts: all tiles have one size, so that the last ones may be smaller, or empty."""
    cuts = []
    for extent, count in zip(shape, counts, strict=True):
        size = -(-extent // count)
        starts = [min(number * size, extent) for number in range(count)]
        cuts.append([(start, min(size, extent - start)) for start in starts])
    return [
        ChunkStorageMetadata(torch.Size(at for at, _ in tile), torch.Size(size for _, size in tile))
        for tile in itertools.product(*cuts)
    ]


def part(tensor, tile):
    return tensor[tuple(slice(at, at + size) for at, size in zip(tile.offsets, tile.sizes, strict=True))]


class TiledSavePlanner(SavePlanner):
    """`counts` tells how often each dim of a tensor is cut, by its name."""

    def __init__(self, counts):
        self._counts = counts

    def set_up_planner(self, state_dict, is_coordinator):  # type: ignore[override] # as before there was storage_meta
        self._state, self._is_coordinator = state_dict, is_coordinator
        self._tiles = {
            (name, number): part(state_dict[name], tile).clone()
            for name, counts in self._counts.items()
            for number, tile in enumerate(tiles_of(state_dict[name].shape, counts))
        }

    def create_local_plan(self):
        rest = {name: value for name, value in self._state.items() if name not in self._counts}
        plan = create_default_local_save_plan(rest, self._is_coordinator)
        items = [*plan.items, *itertools.chain.from_iterable(map(self._items, self._counts))]
        return replace(plan, items=items, planner_data={name: (name,) for name in self._state})

    def create_global_plan(self, all_plans):
        plans, metadata = create_default_global_save_plan(all_plans, rewrite_index_hints=False)
        return plans, replace(metadata, planner_data=plans[0].planner_data)

    def finish_plan(self, new_plan):
        return new_plan

    def resolve_data(self, write_item):
        name, number = write_item.index.fqn, write_item.index.index
        if name in self._counts:
            return self._tiles.pop((name, number))
        if write_item.type is not WriteItemType.BYTE_IO:
            return self._state[name]
        stream = io.BytesIO()
        torch.save(self._state[name], stream)
        return stream

    def _items(self, name):
        tensor = self._state[name]
        form = TensorProperties.create_from_tensor(tensor)
        for number, tile in enumerate(tiles_of(tensor.shape, self._counts[name])):
            index = MetadataIndex(name, tile.offsets, number)
            yield WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(tile, form, tensor.shape))


class TiledLoadPlanner(LoadPlanner):
    """Puts a tensor together when the last element of its tiles is committed, in the one thread that asked for them."""

    def __init__(self, counts):
        self._counts = counts
        self._thread = threading.get_ident()

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        self._state, self._metadata = state_dict, metadata
        self._chunks = {name: tiles_of(state_dict[name].shape, counts) for name, counts in self._counts.items()}
        self._tiles = {name: [torch.empty(tile.sizes) for tile in tiles] for name, tiles in self._chunks.items()}
        self._pending = {name: state_dict[name].numel() for name in self._counts}

    def create_local_plan(self):
        rest = {name: value for name, value in self._state.items() if name not in self._counts}
        plan = create_default_local_load_plan(rest, self._metadata)
        for name, chunks in self._chunks.items():
            plan.items += create_read_items_for_chunk_list(name, self._metadata.state_dict_metadata[name], chunks)
        return plan

    def create_global_plan(self, global_plan):
        return create_default_global_load_plan(global_plan)

    def finish_plan(self, central_plan):
        return central_plan

    def load_bytes(self, read_item, value):
        self._state[read_item.dest_index.fqn] = torch.load(value)

    def resolve_tensor(self, read_item):
        assert threading.get_ident() == self._thread
        name = read_item.dest_index.fqn
        if name not in self._counts:
            return self._state[name]
        tile = self._tiles[name][read_item.dest_index.index]
        return part(tile, ChunkStorageMetadata(read_item.dest_offsets, read_item.lengths))

    def commit_tensor(self, read_item, tensor):
        assert threading.get_ident() == self._thread
        name = read_item.dest_index.fqn
        if name in self._counts:
            self._pending[name] -= tensor.numel()
            if not self._pending[name]:
                for chunk, tile in zip(self._chunks[name], self._tiles.pop(name), strict=True):
                    part(self._state[name], chunk)[...] = tile
