"""DCP's metadata and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from ckptstore.errors import StateError
from ckptstore.format.grid import Division, default_chunk_shape
from ckptstore.format.manifest import Entry, Manifest, TensorEntry
from ckptstore.integrations.dcp.branches import Branch
from ckptstore.integrations.dcp.names import containers_of, flat_names, logical_path
from ckptstore.integrations.trees import KeyPath
from ckptstore.operations.ranks.reports import Report
from ckptstore.operations.ranks.written import tensor_entry, value_entry
from ckptstore.state.dtypes import dtype_name, torch_dtype

if TYPE_CHECKING:
    from _collections_abc import dict_keys

_Stored = TensorStorageMetadata | BytesStorageMetadata


def manifest_of(metadata: Metadata, branches: Mapping[str, Branch], written: Report, division: Division) -> Manifest:
    """The manifest of what ranks wrote, by DCP's metadata of what they had planned, and what some values are made of.

    Raises:
        StateError: a leaf or a part of one that nobody wrote; keys that do not make a tree; what is no key.
    """
    planned = metadata.state_dict_metadata
    keys = _all_keys(metadata)
    for name in keys:
        if name not in planned:
            raise StateError(f"{name!r} is in the state, but no rank was to write it: see to the planner")
    entries: dict[str, Entry] = {}
    for name, path in ((name, logical_path(keys[name])) for name in keys):
        form = planned[name]
        if isinstance(form, TensorStorageMetadata):
            entries[path] = tensor_entry(name, _form(form, division), written)
        elif name in branches:
            entries |= branches[name].entries(name, written, division)
        else:
            entries[path] = value_entry(name, written, division.most)
    containers = containers_of(keys.values())
    found = [branches[name] for name in keys if name in branches]
    for branch in found:
        containers |= branch.containers
    return Manifest(entries, containers, tuple(group for branch in found for group in branch.aliases))


def metadata_of(
    manifest: Manifest, own: Mapping[str, tuple[str, KeyPath]] | None = None
) -> tuple[Metadata, dict[str, str]]:
    """DCP's metadata of a commit, and its names' logical paths. Every tensor is one piece, whoever saved it.

    `own` are more names, see `own_names`. Raises StateError when two leaves have one name in DCP.
    """
    names = flat_names(manifest) | dict(own or {})
    found = {name: _storage_metadata(path, manifest.entries.get(path)) for name, (path, _) in names.items()}
    leaves = {name: found[name] for name, (path, _) in names.items() if path in manifest.entries}
    metadata = Metadata(_Found(found, leaves), planner_data={name: keys for name, (_, keys) in names.items()})
    return metadata, {name: path for name, (path, _) in names.items()}


class _Found(dict[str, _Stored]):
    """DCP's planner, where names are missing in a target, looks at them for those of torch 2.3: what is within a tuple
    has two, of which a target has one.
    """

    def __init__(self, found: Mapping[str, _Stored], leaves: dict[str, _Stored]) -> None:
        super().__init__(found)
        self._leaves = leaves

    def keys(self) -> dict_keys[str, _Stored]:
        return self._leaves.keys()


def _all_keys(metadata: Metadata) -> dict[str, KeyPath]:
    """Name → keys, in the order of the state, which does not depend on who wrote what."""
    keys = _known_keys(metadata.planner_data)
    return keys | {name: (name,) for name in metadata.state_dict_metadata if name not in keys}


def _known_keys(planner_data: Any) -> dict[str, KeyPath]:
    """Raises StateError for what a planner adds to DCP's metadata beside keys, since no load would find it again."""
    if planner_data is None:
        return {}
    found = planner_data.items() if isinstance(planner_data, Mapping) else [("planner_data", planner_data)]
    for name, keys in found:
        if not isinstance(keys, tuple):
            problem = f"{name!r}: the planner adds a {type(keys).__name__} to DCP's metadata"
            raise StateError(f"{problem}, which a commit does not keep: put it into the state")
    return dict(found)


def _form(form: TensorStorageMetadata, division: Division) -> TensorEntry:
    shape, dtype = tuple(form.size), form.properties.dtype
    return TensorEntry(
        library="torch",
        dtype=dtype_name(dtype),
        itemsize=dtype.itemsize,
        shape=shape,
        chunk_shape=default_chunk_shape(shape, dtype.itemsize, division),
        requires_grad=form.properties.requires_grad,
    )


def _storage_metadata(path: str, entry: Entry | None) -> _Stored:
    if not isinstance(entry, TensorEntry) or entry.library != "torch":
        return BytesStorageMetadata()
    size = torch.Size(entry.shape)
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    properties = TensorProperties(torch_dtype(path, entry.dtype), requires_grad=entry.requires_grad)
    return TensorStorageMetadata(properties, size, [whole])
