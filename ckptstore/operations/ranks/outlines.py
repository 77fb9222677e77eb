"""What a rank has of a state that several ranks commit together, and how it describes that to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import msgspec
import torch
from msgspec.structs import replace

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.format.buffers import Buffer
from ckptstore.format.grid import Index, default_chunk_shape, grid_of
from ckptstore.format.manifest import Container, TensorEntry, Value
from ckptstore.operations.ranks.counting import Counting
from ckptstore.operations.ranks.dealing import Shard
from ckptstore.operations.ranks.parts import Part
from ckptstore.state.data_parallel import broadcast_buffers
from ckptstore.state.devices.leaf import DeviceLeaf, bring_all
from ckptstore.state.paths import is_within, join
from ckptstore.state.shards import Region, is_keeper, members, regions_of
from ckptstore.state.stateful import is_exact
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat
from ckptstore.state.watched import Watched

T = TypeVar("T")

Boxes: TypeAlias = tuple[tuple[Index, Index], ...]

_PART = 32


class Undigested(Enum):
    """Why a leaf's content is not compared with that of other ranks."""

    SHARDED = 0
    REPLICATED = 1
    BROADCAST = 2


class Leaf(NamedTuple):
    """A leaf: the entry it will have, as yet without content, None for a plain value; and its content's digest, if
    that is compared.

    One that is sharded has the form of the whole tensor, and says which ranks have it, see `members`.
    """

    form: TensorEntry | None
    size: int
    digest: bytes | Undigested
    members: int = 0


class Outline(msgspec.Struct, frozen=True, array_like=True):
    """A part of a rank's state, without its content, see `Flat`; `free` are paths of objects that are not exact."""

    leaves: dict[str, Leaf] = {}
    containers: dict[str, Container] = {}
    aliases: tuple[tuple[str, ...], ...] = ()
    free: tuple[str, ...] = ()


class Assignment(NamedTuple):
    """What a rank is to write beside its shards: its leaves at or beneath `own` for itself, `common` ones for all.

    Its shards of what is `copied`, see `copies`, it writes only if they are common.
    """

    own: frozenset[str]
    common: frozenset[str]
    copied: frozenset[str] = frozenset()


class Copied(NamedTuple):
    """What a rank has of a DTensor: where it lies in the whole, how many bytes it has, and the digest of these."""

    boxes: Boxes
    size: int
    digest: bytes


class RankState:
    """The state of a rank, made by `flatten` when it is asked for its outline; `measure` is given its bytes then.

    `among` are the numbers, in the default group, of the ranks that commit with it.
    """

    def __init__(
        self,
        chunks: ChunkStore,
        rank: int,
        flatten: Callable[[], Flat],
        measure: Callable[[int], Advance] = lambda _: ignore,
        among: AbstractSet[int] = frozenset(),
    ) -> None:
        self._chunks, self._rank, self._flatten, self._measure = chunks, rank, flatten, measure
        self._among = among
        self._flat = Flat({}, {}, (), {})
        self._broadcast: frozenset[str] = frozenset()
        self._regions: dict[str, list[Region]] = {}

    def outlines(self) -> list[bytes]:
        """Its outlines, encoded; most are the same on all ranks, also where something else is not.

        Raises what `flatten` raises, and StateError and UnsupportedLeaf for a DTensor.
        """
        self._flat = self._flatten()
        self._watched = Watched(self._flat)
        self._broadcast = broadcast_buffers(self._flat.owners, self._among)
        self._advance = self._measure(self._flat.nbytes)
        self._regions = {path: regions_of(tensor, path) for path, tensor in self._flat.sharded.items()}
        leaves = {path: self._leaf(path, leaf) for path, leaf in self._flat.leaves.items()}
        parts = [
            *(Outline(leaves=some) for some in _cut(leaves)),
            *(Outline(containers=some) for some in _cut(self._flat.containers)),
            Outline(aliases=self._flat.aliases),
            Outline(free=tuple(path for path, owner in self._flat.owners.items() if not is_exact(owner))),
        ]
        return [msgspec.msgpack.encode(part) for part in parts]

    def check(self) -> None:
        """Raises StateError when a tensor of the host was changed since its outline was asked for."""
        self._watched.check()

    def parts(self, assigned: Assignment) -> list[Part]:
        """Its parts of tensors, by the paths that they will have."""
        return [*self._shards(assigned), *self._tensors(assigned)]

    def copied(self, paths: AbstractSet[str]) -> dict[str, Copied]:
        """What it has of these tensors, by path."""
        return {path: self._copied(path) for path in self._flat.sharded if path in paths}

    def counting(self, assigned: Assignment, parts: Sequence[Part]) -> Counting:
        """Counts the bytes of its `parts`; what is tied is written by each path, and counts once."""
        places = {self._place(path, assigned) or path for path in self._flat.tied}
        own = Counter[str]()
        for part in parts:
            if part.shard.path not in places:
                own[part.shard.path] += part.nbytes
        return Counting(self._advance, self._flat.nbytes, own)

    def values(self, assigned: Assignment) -> dict[str, Value]:
        """Plain values, likewise."""
        plain = ((path, leaf) for path, leaf in self._flat.leaves.items() if not isinstance(leaf, TensorLeaf))
        return {place: leaf for path, leaf in plain if (place := self._place(path, assigned)) is not None}

    def _leaf(self, path: str, leaf: TensorLeaf | Value) -> Leaf:
        if not isinstance(leaf, TensorLeaf):
            content = msgspec.msgpack.encode(leaf)
            return Leaf(None, len(content), self._digest(path, lambda: content))
        whole = self._flat.sharded.get(path)
        shape = leaf.shape if whole is None else tuple(whole.shape)
        form = self._entry(leaf, shape)
        if whole is None:
            return Leaf(form, leaf.nbytes, self._digest(path, lambda: self._content(leaf, form)))
        parameter = isinstance(whole, torch.nn.Parameter)
        form = replace(form, shape=shape, order=None, requires_grad=whole.requires_grad, parameter=parameter)
        return Leaf(form, leaf.nbytes, Undigested.SHARDED, members(whole))

    def _copied(self, path: str) -> Copied:
        leaf = self._flat.leaves[path]
        assert isinstance(leaf, TensorLeaf)
        content = self._content(leaf, self._entry(leaf, leaf.shape))
        boxes = tuple((region.start, region.stop) for region in self._regions[path])
        return Copied(boxes, leaf.nbytes, self._chunks.digest.compute(content))

    def _entry(self, leaf: TensorLeaf, shape: Index) -> TensorEntry:
        return leaf.entry(default_chunk_shape(shape, leaf.itemsize, self._chunks.config.division))

    def _digest(self, path: str, content: Callable[[], Buffer]) -> bytes | Undigested:
        if path in self._flat.replicated:
            return Undigested.REPLICATED
        return Undigested.BROADCAST if path in self._broadcast else self._chunks.digest.compute(content())

    def _content(self, leaf: TensorLeaf, form: TensorEntry) -> bytes:
        """The digests of its chunks. Of one on a device, chunks come to the host of which that is not known yet."""
        compute = self._chunks.digest.compute
        spans = grid_of(form.shape, form.chunk_shape).spans(form.itemsize)
        if not isinstance(leaf, DeviceLeaf):
            data = leaf.row_major()
            return b"".join(compute(data[slice(*span)]) for span in spans)
        known = leaf.digests()
        missing = [span for span in spans if span not in known]
        brought = bring_all((leaf, span) for span in missing)
        known.update((span, compute(data)) for span, data in zip(missing, brought, strict=True))
        return b"".join(known[span] for span in spans)

    def _shards(self, assigned: Assignment) -> Iterator[Part]:
        for path, whole in self._flat.sharded.items():
            leaf = self._flat.leaves[path]
            among_copies = path in assigned.copied
            kept = path in assigned.common if among_copies else is_keeper(whole, path, self._among)
            for region in self._regions[path] if kept else ():
                shard = Shard(path, leaf.itemsize, tuple(whole.shape), region.start, region.stop)
                yield Part(shard, whole.dtype, partial(_itself, leaf), region.local)

    def _tensors(self, assigned: Assignment) -> Iterator[Part]:
        for path, leaf in self._flat.leaves.items():
            place = self._place(path, assigned)
            if isinstance(leaf, TensorLeaf) and path not in self._flat.sharded and place is not None:
                shard = Shard(place, leaf.itemsize, leaf.shape, (0,) * len(leaf.shape), leaf.shape)
                yield Part(shard, leaf.tensor.dtype, partial(_itself, leaf))

    def _place(self, path: str, assigned: Assignment) -> str | None:
        """Where this rank is to write a leaf, if it is."""
        if is_within(path, assigned.own):
            return join(str(self._rank), path)
        return path if path in assigned.common else None


def _cut(items: Mapping[str, T]) -> Iterator[dict[str, T]]:
    """Into parts of some dozens. A path alone says whether it is the last of one, so that parts do not depend on what
    comes before them.
    """
    part: dict[str, T] = {}
    for path, item in items.items():
        part[path] = item
        if crc32(path.encode()) % _PART == 0:
            yield part
            part = {}
    yield part


def _itself(leaf: TensorLeaf) -> TensorLeaf:
    return leaf
