"""The leaves of a torchsnapshot, read by their entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ckptstore.errors import FormatError, UnknownType
from ckptstore.format.grid import Index
from ckptstore.integrations.mapped import CheckpointFiles, MappedTensor, gathered
from ckptstore.integrations.torchsnapshot.manifest import (
    ChunkedTensorEntry,
    LeafEntry,
    ObjectEntry,
    Shard,
    ShardedTensorEntry,
    TensorEntry,
)
from ckptstore.state.dtypes import torch_dtype
from ckptstore.state.pieces import PiecedTensor

_QUANTIZED = "torch.q"


class SnapshotLeaves:
    """Leaves of a folder.

    Args:
        folder: where their files lie.
        allow_pickle: run the code of pickles.
    """

    def __init__(self, folder: Path, *, allow_pickle: bool) -> None:
        self._folder = folder
        self._files = CheckpointFiles(folder, allow_pickle=allow_pickle)

    def read(self, entry: LeafEntry, path: str) -> Any:
        """A value, or a tensor that is read when it is committed. Raises FormatError."""
        if isinstance(entry, TensorEntry):
            whole = Shard((0,) * len(entry.shape), entry.shape, entry)
            quantized = entry.dtype.startswith(_QUANTIZED)
            return self._saved(entry, path) if quantized else self._tensor([whole], entry.shape, entry.dtype, path)
        if isinstance(entry, ChunkedTensorEntry):
            return self._tensor(entry.chunks, entry.shape, entry.dtype, path)
        if isinstance(entry, ShardedTensorEntry):
            return self._sharded(entry.shards, path)
        if isinstance(entry, ObjectEntry):
            return self._saved(entry, path)
        try:
            return entry.value
        except (LookupError, ValueError, ArithmeticError) as error:
            raise FormatError(f"{self._folder}: {path!r} is no value of its type: {error}") from error

    def _saved(self, entry: TensorEntry | ObjectEntry, path: str) -> Any:
        if entry.serializer != "torch_save":
            raise self._unknown(entry.serializer, path)
        return self._files.value(self._files.place(path, entry.location))

    def _sharded(self, shards: Sequence[Shard], path: str) -> PiecedTensor:
        """A snapshot does not record the shape; it ends where the last shards do."""
        if not shards:
            raise FormatError(f"{self._folder}: {path!r} has no shards")
        stops = [tuple(map(sum, zip(shard.offsets, shard.sizes, strict=False))) for shard in shards]
        return self._tensor(shards, tuple(map(max, zip(*stops, strict=False))), shards[0].tensor.dtype, path)

    def _tensor(self, shards: Sequence[Shard], shape: Index, dtype: str, path: str) -> PiecedTensor:
        pieces = [(shard.offsets, shard.sizes, self._piece(shard.tensor, path)) for shard in shards]
        return gathered(f"{self._folder}: {path!r}", self._dtype(dtype, path), shape, pieces)

    def _piece(self, entry: TensorEntry, path: str) -> MappedTensor:
        start, stop = entry.byte_range or (0, None)
        place = self._files.place(path, entry.location, start, None if stop is None else stop - start)
        if entry.serializer == "torch_save":
            return self._files.saved_tensor(place)
        if entry.serializer == "buffer_protocol":
            return self._files.plain_tensor(place, self._dtype(entry.dtype, path), entry.shape)
        raise self._unknown(entry.serializer, path)

    def _unknown(self, serializer: str, path: str) -> FormatError:
        return FormatError(f"{self._folder}: {path!r} was written by the serializer {serializer!r}, which is not known")

    def _dtype(self, name: str, path: str) -> torch.dtype:
        try:
            return torch_dtype(path, name.removeprefix("torch."))
        except UnknownType as error:
            raise FormatError(f"{self._folder}: {error}") from error
