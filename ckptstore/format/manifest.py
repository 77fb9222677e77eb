"""The manifest of a commit: every leaf, the containers that hold them, and what is tied.

A manifest is typed and checked when it is read. It holds no Python object: values are in the small encoded
form described at `Value`, so that `ckptstore log` or `diff` can show them without importing torch.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Literal

import msgspec

from ckptstore.errors import CorruptData
from ckptstore.format.grid import Grid, Index, grid_of

INLINE_TENSOR, INLINE_VALUE = 64, 1024
"""Arrays and encoded values of at most so many bytes stand in the manifest itself."""

_MOST_DIMS = 64  # numpy's
_MOST_BYTES = (1 << 63) - 1

Value = Any
"""An encoded plain value: None, bool, int (64 bit), float, str, bytes, a list of values, or a map of one entry
`{kind: value}` for every other type, as in `{"tuple": [0.9, 0.999]}` or `{"complex": [1.0, -2.0]}`."""


class TensorEntry(msgspec.Struct, frozen=True, array_like=True, tag="tensor", gc=False):
    """A dense array: its form, and the digests of its chunks or its bytes.

    `chunks` holds the digests of a grid of `chunk_shape` chunks over `shape`, concatenated in C order; when it is
    empty, `inline` holds the array's bytes. Bytes are row-major whatever the strides were; torch's are little-endian,
    numpy's in the byte order of `dtype`.
    `order` lists the dims from the slowest to the fastest in memory when that is not row-major.
    """

    library: Literal["torch", "numpy"]
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: bytes = b""
    inline: bytes = b""
    order: tuple[int, ...] | None = None
    requires_grad: bool = False
    parameter: bool = False


class ValueEntry(msgspec.Struct, frozen=True, array_like=True, tag="value", gc=False):
    """A plain value; the msgpack of a large one, `size` bytes, lies in chunks of at most `chunk_size`."""

    value: Value = None
    size: int = 0
    chunk_size: int = 0
    chunks: bytes = b""


Entry = TensorEntry | ValueEntry
MAPPINGS = frozenset({"dict", "OrderedDict", "defaultdict", "Counter"})
"""Kinds of containers whose keys are any, and may be some of several."""


def chunk_digests(entry: Entry, digest_size: int) -> list[bytes]:
    """The digests of an entry's chunks, in the order of its grid."""
    return split_digests(entry.chunks, digest_size)


def chunk_sizes(entry: Entry) -> list[int]:
    """The lengths in bytes of an entry's chunks, in the order of its grid; it must have some."""
    if isinstance(entry, TensorEntry):
        return grid_of(entry.shape, entry.chunk_shape).sizes(entry.itemsize)
    return Grid((entry.size,), (entry.chunk_size,)).sizes(1)


def split_digests(joined: bytes, digest_size: int) -> list[bytes]:
    """Digests that stand one after the other."""
    return [joined[at : at + digest_size] for at in range(0, len(joined), digest_size)]


class Container(msgspec.Struct, frozen=True, array_like=True):
    """An inner node of the tree: what it was, its children's keys, and what else it needs to be built again.

    `kind` is dict, OrderedDict, defaultdict, list, tuple, set, frozenset, namedtuple, dataclass, sparse_coo,
    sparse_csr, … `keys` are the encoded keys in order (dict-like kinds, field names) or the count of items is
    their length (sequences: 0, 1, 2 …). `type` is `module:qualname` for namedtuples and dataclasses.
    `attributes` is whatever else the kind needs, encoded.
    """

    kind: str
    keys: tuple[Value, ...] = ()
    type: str = ""
    attributes: dict[str, Value] = {}


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """One commit's tree. `aliases` are groups of paths that were one and the same tensor."""

    entries: dict[str, Entry]
    containers: dict[str, Container]
    aliases: tuple[tuple[str, ...], ...] = ()

    @property
    def tied(self) -> dict[str, str]:
        """Path → the first path of its group, of all the others of these."""
        return {path: group[0] for group in self.aliases for path in group[1:]}


def entry_bytes(entry: Entry) -> int:
    """The bytes of a leaf: of the array, or of the value's encoding."""
    if isinstance(entry, TensorEntry):
        return prod(entry.shape) * entry.itemsize
    return entry.size or len(msgspec.msgpack.encode(entry.value))


def logical_bytes(manifest: Manifest) -> int:
    """The bytes of a state; what is tied counts once."""
    repeated = manifest.tied
    return sum(entry_bytes(entry) for path, entry in manifest.entries.items() if path not in repeated)


def check_consistent(manifest: Manifest, digest_size: int, name: str) -> None:
    """Raises CorruptData for a manifest that contradicts itself, which checksums cannot know."""
    for path, entry in manifest.entries.items():
        if not _is_consistent(entry, digest_size):
            raise CorruptData(f"{name}: the entry of {path!r} contradicts itself; run verify")
    for path in ("", *manifest.containers):
        if path in manifest.entries:
            raise CorruptData(f"{name}: {path!r} is a leaf and a container at once; run verify")
    for group in manifest.aliases:
        if not _are_tied(manifest, group):
            raise CorruptData(f"{name}: {list(group)} are not one tensor, as it says; run verify")
    tied = [path for group in manifest.aliases for path in group]
    if len(set(tied)) < len(tied) or logical_bytes(manifest) > _MOST_BYTES:
        raise CorruptData(f"{name}: its ties or its size contradict themselves; run verify")


def _are_tied(manifest: Manifest, group: tuple[str, ...]) -> bool:
    entries = [manifest.entries.get(path) for path in group]
    return all(isinstance(entry, TensorEntry) and entry == entries[0] for entry in entries)


def _is_consistent(entry: Entry, digest_size: int) -> bool:
    if isinstance(entry, ValueEntry):
        return _is_consistent_value(entry, digest_size)
    extent = _extent(entry.itemsize, entry.shape, entry.chunk_shape, entry.order)
    if extent is None:
        return False
    nbytes, count = extent
    if not entry.chunks:
        return len(entry.inline) == nbytes
    in_order = grid_of(entry.shape, entry.chunk_shape).is_consecutive
    return nbytes > 0 and in_order and not entry.inline and len(entry.chunks) == count * digest_size


@lru_cache(1024)
def is_storable(itemsize: int, shape: Index) -> bool:
    """Whether numpy has arrays of this form, which all of them pass through."""
    count = prod(shape) or prod(max(extent, 1) for extent in shape)  # strides are made of it, though an extent be 0
    span = itemsize * count
    return len(shape) <= _MOST_DIMS and span <= _MOST_BYTES


@lru_cache(1024)  # of many leaves, few have a form of their own
def _extent(itemsize: int, shape: Index, chunk_shape: Index, order: Index | None) -> tuple[int, int] | None:
    """How many bytes and chunks an array of this form has; None when there is no such form."""
    if len(chunk_shape) != len(shape) or min(shape, default=0) < 0 or min(chunk_shape, default=1) < 1:
        return None
    if itemsize < 0 or not is_storable(itemsize, shape):
        return None
    if order is not None and sorted(order) != list(range(len(shape))):
        return None
    return prod(shape) * itemsize, prod(Grid(shape, chunk_shape).counts)


def _is_consistent_value(entry: ValueEntry, digest_size: int) -> bool:
    if not entry.size:
        return not entry.chunks
    if entry.value is not None or not 0 < entry.size <= _MOST_BYTES or entry.chunk_size < 1:
        return False
    return len(entry.chunks) == -(-entry.size // entry.chunk_size) * digest_size
