"""The file `.metadata` of a DCP checkpoint: a pickle of which leaves there are and where their bytes lie.

Nothing that it names is imported. Every class it may name is a stand-in made for this one file, which holds what the
pickle gives it, and what comes out of that is checked. Other classes are refused, unless pickles are allowed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ckptstore.errors import FormatError
from ckptstore.integrations.mapped import NonNegative
from ckptstore.integrations.trees import KeyPath

_FILE = ".metadata"
_FIRST_RANKS_FILE = "__0.metadata"
_VERSIONS = (None, "1.0.0")
_METADATA, _FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_BEFORE_2_3 = "torch.distributed._shard.sharded_tensor.metadata"
_TENSOR, _BYTES = "TensorStorageMetadata", "BytesStorageMetadata"
_HOLDERS = {
    *((_METADATA, name) for name in ("Metadata", _TENSOR, _BYTES, "ChunkStorageMetadata", "TensorProperties")),
    *((_METADATA, name) for name in ("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")),
    *((_BEFORE_2_3, name) for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    (_FILES, "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("builtins", "getattr"),  # of a class and a name: members of enums, as some versions of Python pickle them
}


class SavedBytes(msgspec.Struct, frozen=True):
    """Where an item lies; `length` bytes of a file beside `.metadata`."""

    relative_path: str
    offset: NonNegative
    length: NonNegative
    transform_descriptors: list[str] | None = None


class SavedPiece(msgspec.Struct, frozen=True):
    """A box of a tensor."""

    offsets: tuple[NonNegative, ...]
    sizes: tuple[NonNegative, ...]


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor, and where its pieces lie."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool
    pieces: list[tuple[SavedPiece, SavedBytes]]


@dataclass(frozen=True, slots=True)
class SavedState:
    """Every leaf, by the keys on the way to it: tensors, and values that `torch.save` wrote."""

    tensors: dict[KeyPath, SavedTensor]
    values: dict[KeyPath, SavedBytes]
    order: list[KeyPath]


def read_metadata(folder: Path, *, allow_pickle: bool) -> SavedState:
    """What `.metadata` states.

    Raises:
        FormatError: it is missing, no whole metadata of DCP, or names a class that needs `allow_pickle`.
    """
    file = folder / _FILE
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(_why_missing(folder)) from None
    try:
        return _decode(_Unpickler(data, allow_pickle=allow_pickle).load())
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    except Exception as error:  # whatever the bytes of a foreign file make its reader raise
        raise FormatError(f"{file} is no whole metadata of DCP: {error}") from error


def _why_missing(folder: Path) -> str:
    if (folder / _FIRST_RANKS_FILE).exists():
        problem = f"{folder} was saved with use_collectives=False: it has {_FIRST_RANKS_FILE} and so on, no {_FILE}"
        return f"{problem}: dcp.load it on as many ranks as saved it, and save it again without use_collectives"
    return f"{folder} has no file {_FILE}: give the folder of a finished DCP checkpoint"


class _Held:
    """Stands in for an object of a class, with the state that it was pickled with."""

    state: Any = None

    def __init__(self, *args: object) -> None:
        self.args = args

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, *, allow_pickle: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._allow_pickle = allow_pickle
        self._holders = {place: type(place[1], (_Held,), {}) for place in _HOLDERS}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._holders:
            return self._holders[module, name]
        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if not self._allow_pickle:
            advice = "allow pickles if you trust it (--allow-pickle)"
            raise FormatError(f"names {module}.{name}, which can run any code: {advice}")
        return super().find_class(module, name)


def _decode(root: Any) -> SavedState:
    if type(root).__name__ != "Metadata" or root.state.get("version") not in _VERSIONS:
        raise FormatError(f"is not of a version that is known ({', '.join(map(str, _VERSIONS[1:]))})")
    leaves, places = root.state["state_dict_metadata"], _places(root.state["storage_data"])
    keys = _all_keys(leaves, root.state.get("planner_data"))
    found = SavedState({}, {}, list(keys.values()))
    for name, way in keys.items():
        kind = type(leaves[name]).__name__
        if kind == _TENSOR:
            found.tensors[way] = _tensor(name, leaves[name].state, places)
        elif kind == _BYTES:
            found.values[way] = _place(places, name, None)
        else:
            raise FormatError(f"{name!r} is a {kind}, which is not known")
    return found


def _all_keys(leaves: Mapping[str, Any], planner_data: Any) -> dict[str, KeyPath]:
    """Name → keys on the way, in the order of the state; a planner that records none made no names of several."""
    known = planner_data if isinstance(planner_data, dict) else {}
    keys = {name: msgspec.convert(way, KeyPath) for name, way in known.items() if isinstance(way, tuple)}
    missing = keys.keys() - leaves.keys()
    if missing:
        raise FormatError(f"{min(missing)!r} is in the state, but was not written")
    keys |= {name: (name,) for name in leaves if name not in keys}
    if len(set(keys.values())) < len(keys):
        raise FormatError("two leaves have the same keys")
    return keys


def _places(storage_data: Mapping[Any, Any]) -> dict[tuple[str, tuple[int, ...] | None], SavedBytes]:
    places = {}
    for index, info in storage_data.items():
        offset = index.state.get("offset")
        place = msgspec.convert(info.state, SavedBytes)
        if place.transform_descriptors:
            by = ", ".join(place.transform_descriptors)
            raise FormatError(f"{index.state['fqn']!r} was transformed ({by}) when it was written: write it without")
        places[index.state["fqn"], None if offset is None else tuple(offset)] = place
    return places


def _place(places: Mapping[Any, SavedBytes], name: str, offset: tuple[int, ...] | None) -> SavedBytes:
    if (name, offset) not in places:
        raise FormatError(f"{name!r}: nothing tells where the piece at {offset} lies")
    return places[name, offset]


def _tensor(name: str, saved: Mapping[str, Any], places: Mapping[Any, SavedBytes]) -> SavedTensor:
    dtype, _, requires_grad, *_ = saved["properties"].state
    if not isinstance(dtype, torch.dtype):
        raise FormatError(f"{name!r} has no dtype")
    boxes = dict.fromkeys(msgspec.convert(chunk.state, SavedPiece) for chunk in saved["chunks"])
    pieces = [(box, _place(places, name, box.offsets)) for box in boxes]
    return SavedTensor(dtype, msgspec.convert(saved["size"], tuple[NonNegative, ...]), requires_grad is True, pieces)
