"""The file `.snapshot_metadata` of a torchsnapshot: every leaf of every rank, and where its bytes lie."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ckptstore.errors import FormatError
from ckptstore.integrations.mapped import NonNegative

_FILE = ".snapshot_metadata"


class TensorEntry(msgspec.Struct, frozen=True, tag="Tensor"):
    """A tensor, or a piece of one, in a file or in a range of its bytes."""

    location: str
    serializer: str
    dtype: str
    shape: tuple[NonNegative, ...]
    replicated: bool
    byte_range: tuple[NonNegative, NonNegative] | None = None


class Shard(msgspec.Struct, frozen=True):
    """A box of a tensor."""

    offsets: tuple[NonNegative, ...]
    sizes: tuple[NonNegative, ...]
    tensor: TensorEntry


class ChunkedTensorEntry(msgspec.Struct, frozen=True, tag="ChunkedTensor"):
    """A tensor that one rank wrote in pieces, or several when it is replicated."""

    dtype: str
    shape: tuple[NonNegative, ...]
    chunks: list[Shard]
    replicated: bool


class ShardedTensorEntry(msgspec.Struct, frozen=True, tag="ShardedTensor"):
    """The pieces of a tensor that one rank had."""

    shards: list[Shard]


class ObjectEntry(msgspec.Struct, frozen=True, tag="object"):
    """What `torch.save` wrote to a file."""

    location: str
    serializer: str
    replicated: bool


class _Primitive(msgspec.Struct, frozen=True):
    serialized_value: str
    replicated: bool


class IntEntry(_Primitive, frozen=True, tag="int"):
    """An int."""

    @property
    def value(self) -> int:
        """As it was."""
        return int(self.serialized_value)


class StrEntry(_Primitive, frozen=True, tag="str"):
    """A str."""

    @property
    def value(self) -> str:
        """As it was."""
        return self.serialized_value


class BoolEntry(_Primitive, frozen=True, tag="bool"):
    """A bool."""

    @property
    def value(self) -> bool:
        """As it was."""
        return {"True": True, "False": False}[self.serialized_value]


class BytesEntry(_Primitive, frozen=True, tag="bytes"):
    """Bytes."""

    @property
    def value(self) -> bytes:
        """As they were."""
        return base64.b64decode(self.serialized_value, validate=True)


class FloatEntry(_Primitive, frozen=True, tag="float"):
    """A float."""

    @property
    def value(self) -> float:
        """As it was."""
        found: float = struct.unpack("d", base64.b64decode(self.serialized_value, validate=True))[0]
        return found


class ListEntry(msgspec.Struct, frozen=True, tag="list"):
    """A list; its items' paths end in their places."""


class DictEntry(msgspec.Struct, frozen=True, tag="dict"):
    """A dict; its items' paths end in `escaped` keys."""

    keys: list[str | int | bool]


class OrderedDictEntry(DictEntry, frozen=True, tag="OrderedDict"):
    """An OrderedDict."""


PrimitiveEntry = IntEntry | StrEntry | BoolEntry | BytesEntry | FloatEntry
ContainerEntry = ListEntry | DictEntry | OrderedDictEntry
LeafEntry = TensorEntry | ChunkedTensorEntry | ShardedTensorEntry | ObjectEntry | PrimitiveEntry


class _Snapshot(msgspec.Struct, frozen=True):
    version: str
    world_size: NonNegative
    manifest: dict[str, LeafEntry | ContainerEntry]


Entries = Mapping[str, LeafEntry | ContainerEntry]


def read_snapshot(folder: Path) -> list[dict[str, LeafEntry | ContainerEntry]]:
    """The entries of each rank by their paths, without the rank.

    Raises FormatError: the file is missing, no JSON, or of an unknown version.
    """
    file = folder / _FILE
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(f"{folder} has no file {_FILE}: give the folder of a finished torchsnapshot") from None
    try:
        return _by_rank(msgspec.json.decode(data, type=_Snapshot))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        advice = "if it is YAML, as the first versions wrote it, write it as JSON"
        raise FormatError(f"{file} is no metadata of torchsnapshot that is known: {error}; {advice}") from error
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error


def escaped(key: str | int) -> str:
    """A key as it is in paths."""
    return str(key).replace("%", "%25").replace("/", "%2F")


def _by_rank(snapshot: _Snapshot) -> list[dict[str, LeafEntry | ContainerEntry]]:
    if not snapshot.version.startswith("0."):
        raise FormatError(f"it is of version {snapshot.version}, where 0 is known")
    ranks: dict[str, dict[str, LeafEntry | ContainerEntry]] = {}
    for path, entry in snapshot.manifest.items():
        rank, _, rest = path.partition("/")
        ranks.setdefault(rank, {})[rest] = entry
    known = [str(rank) for rank in range(min(snapshot.world_size, 1 << 20))]
    if not ranks.keys() <= set(known):
        raise FormatError(f"it has paths of rank {max(ranks)}, but is of {snapshot.world_size} ranks")
    return [ranks.get(rank, {}) for rank in known]
