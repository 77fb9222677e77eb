"""Values of a rank that are several leaves of the commit, as a tuple with tensors is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType

from ckptstore.format.grid import Division, default_chunk_shape
from ckptstore.format.manifest import Container, Entry, TensorEntry, Value
from ckptstore.integrations.dcp.values import taken
from ckptstore.operations.ranks.dealing import Shard
from ckptstore.operations.ranks.parts import Part
from ckptstore.operations.ranks.reports import Report
from ckptstore.operations.ranks.written import tensor_entry, value_entry
from ckptstore.state.arrays import Array
from ckptstore.state.clones import on_host
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat


class Branch(NamedTuple):
    """What stands beneath the path of a value, see `Flat`; of arrays the entries, as yet without chunks."""

    leaves: Mapping[str, TensorEntry | None]
    containers: Mapping[str, Container]
    aliases: tuple[tuple[str, ...], ...]

    def entries(self, name: str, written: Report, division: Division) -> dict[str, Entry]:
        """By path. Raises StateError for what nobody wrote."""
        return {path: _entry(_inner(name, path), form, written, division) for path, form in self.leaves.items()}


class Values:
    """The values that a planner gives to this rank.

    Attributes:
        branches: by name, those that are several leaves.
        parts: arrays in them.
        logical_paths: of these, by the name of the part.
    """

    def __init__(
        self, items: Iterable[WriteItem], planner: SavePlanner, paths: Mapping[str, str], *, allow_pickle: bool
    ) -> None:
        self.branches: dict[str, Branch] = {}
        self.parts: list[Part] = []
        self.logical_paths: dict[str, str] = {}
        self._plain: dict[str, Value] = {}
        self._failure: BaseException | None = None
        try:
            for item in items:
                if item.type is WriteItemType.BYTE_IO:
                    name, given = item.index.fqn, planner.resolve_data(item)
                    self._take(name, paths[name], taken(name, paths[name], given, allow_pickle=allow_pickle))
        except BaseException as error:  # noqa: BLE001 - raised where the other ranks hear of it
            self._failure = error

    def plain(self) -> dict[str, Value]:
        """Encoded, by name. Raises what kept them from being taken."""
        if self._failure is not None:
            raise self._failure
        return self._plain

    def _take(self, name: str, path: str, found: Value | Flat) -> None:
        if not isinstance(found, Flat):
            self._plain[name] = found
        elif found.leaves.keys() == {path} and not isinstance(found.leaves[path], TensorLeaf):
            self._plain[name] = found.leaves[path]
        else:
            leaves = {inner: self._leaf(_inner(name, inner), inner, leaf) for inner, leaf in found.leaves.items()}
            self.branches[name] = Branch(leaves, found.containers, found.aliases)

    def _leaf(self, name: str, path: str, leaf: TensorLeaf | Value) -> TensorEntry | None:
        self.logical_paths[name] = path
        if not isinstance(leaf, TensorLeaf):
            self._plain[name] = leaf
            return None
        shape = leaf.shape
        shard = Shard(name, leaf.itemsize, shape, (0,) * len(shape), shape)
        self.parts.append(Part(shard, leaf.tensor.dtype, partial(_brought, leaf.tensor)))
        return leaf.entry(chunk_shape=())


def _inner(name: str, path: str) -> str:
    """What the ranks call a leaf of a value; no state's own name for DCP has such a byte."""
    return f"{name}\0{path}"


def _entry(name: str, form: TensorEntry | None, written: Report, division: Division) -> Entry:
    if form is None:
        return value_entry(name, written, division.most)
    chunk_shape = default_chunk_shape(form.shape, form.itemsize, division)
    return tensor_entry(name, replace(form, chunk_shape=chunk_shape), written)


def _brought(array: Array) -> TensorLeaf:
    return TensorLeaf(on_host(array))
