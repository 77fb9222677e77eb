"""An app state as logical paths and leaves; `unflatten` is the way back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from ckptstore.errors import (
    InvalidArgument,
    StateError,
    UnsupportedLeaf,
)
from ckptstore.format.manifest import Container, Value
from ckptstore.state import composites
from ckptstore.state.addresses import identity, missing_memory, pointer
from ckptstore.state.containers import open_container
from ckptstore.state.dtypes import dtype_name
from ckptstore.state.paths import segment, selector
from ckptstore.state.pieces import PiecedLeaf, PiecedTensor
from ckptstore.state.shards import is_sharded, part_of
from ckptstore.state.stateful import RNGState, state_of
from ckptstore.state.tensors import TensorLeaf, require_storable
from ckptstore.state.values import encode, is_plain, type_name

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

CALL_LAZY = "call the lazy module once first"

_MOST_NESTED = 128
_UNKNOWN: Value = {"pickle": b""}
"""Stands for what a target has and nobody looks into."""
_SUBCLASS = (
    "a tensor subclass: store its local, plain tensors, or a ShardedTensor with dcp.save and StoreWriter, "
    "or pass allow_pickle=True"
)
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True)
class Flat:
    """A flattened state.

    Attributes:
        leaves: path → array or encoded value, in the order of the state.
        containers: path → inner node; "" is the root.
        aliases: groups of paths that show the same memory in the same way.
        stateful: path → object whose state_dict stands there.
        owners: those of them that are not part of another one's state.
        sharded: path → DTensor; its leaf is the part that this process has.
        replicated: paths of leaves that are to be taken for the same on all ranks that have them.
        unfit: of a target: path → why what is there can take nothing.
        opaque: of a target: path → what is there, of tensors that nobody looks into.
    """

    leaves: dict[str, TensorLeaf | Value]
    containers: dict[str, Container]
    aliases: tuple[tuple[str, ...], ...]
    stateful: dict[str, object]
    owners: dict[str, object] = field(default_factory=dict)
    sharded: dict[str, DTensor] = field(default_factory=dict)
    replicated: frozenset[str] = frozenset()
    unfit: dict[str, UnsupportedLeaf] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)

    @property
    def tied(self) -> dict[str, str]:
        """Path → the first path of its group, of all the others of these."""
        return {path: group[0] for group in self.aliases for path in group[1:]}

    @property
    def arrays(self) -> list[TensorLeaf]:
        """All of them; what is tied once."""
        repeated = self.tied
        leaves = (leaf for path, leaf in self.leaves.items() if path not in repeated)
        return [leaf for leaf in leaves if isinstance(leaf, TensorLeaf)]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; what is tied counts once."""
        return sum(leaf.nbytes for leaf in self.arrays)


def flatten(app_state: Mapping[str, object], *, allow_pickle: bool = False, replicated: Iterable[str] = ()) -> Flat:
    """Every leaf of a state; tensors are not copied. Objects with state_dict and load_state_dict stand for theirs.

    `replicated` are globs of the paths that `Flat.replicated` has.

    Raises:
        InvalidArgument: `app_state` is no mapping with str keys.
        UnsupportedLeaf: a leaf of a type that has no encoding; with `allow_pickle`, only one that cannot be pickled.
        StateError: a state that contains itself.
    """
    walk = _Walk(allow_pickle)
    walk.enter(_checked(app_state), "")
    walk.ask_generators_again()
    return walk.flat(frozenset(filter(selector(replicated), walk.leaves)))


def flatten_target(app_state: Mapping[str, object]) -> Flat:
    """Every leaf of a state that is to be filled, likewise; what cannot be stored is a plain value, or `Flat.unfit`."""
    walk = _Walk(allow_pickle=False, is_target=True)
    walk.enter(_checked(app_state), "")
    return walk.flat(frozenset())


def flatten_at(path: str, value: object, *, allow_pickle: bool = False) -> Flat:
    """Every leaf of what stands at a path of a state, likewise."""
    walk = _Walk(allow_pickle)
    walk.visit(value, path)
    return walk.flat(frozenset())


def is_stateful(value: object) -> bool:
    """Whether an object is stored as its state_dict()."""
    if isinstance(value, dict | torch.Tensor | type):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _checked(app_state: object) -> dict[str, object]:
    if not isinstance(app_state, Mapping):
        raise InvalidArgument(f'the app state is a {type_name(app_state)}: give a dict of names, as {{"model": model}}')
    for key in app_state:
        if type(key) is not str:
            raise InvalidArgument(f"the app state has the key {key!r}: give names that are str")
    return dict(app_state)


@dataclass(slots=True)
class _Walk:
    allow_pickle: bool
    is_target: bool = False
    leaves: dict[str, TensorLeaf | Value] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    stateful: dict[str, object] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    sharded: dict[str, DTensor] = field(default_factory=dict)
    unfit: dict[str, UnsupportedLeaf] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)
    _generators: dict[str, torch.Generator] = field(default_factory=dict)
    _statefuls: int = 0
    _pointers: dict[str, int] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    def visit(self, value: Any, path: str) -> None:
        cls = type(value)
        try:
            if cls in _TENSORS:
                self._tensor(value, path)
            elif cls is np.ndarray:
                self._numpy(value, path)
            elif cls is PiecedTensor:
                self.leaves[path] = PiecedLeaf(value.form, value)
                self._pointers[path] = id(value)
            elif is_plain(value):
                self.leaves[path] = encode(value, path)
                if cls is torch.Generator:
                    self._generators[path] = value
            elif is_sharded(value):
                self.sharded[path] = value
                self._tensor(part_of(value), path)
            else:
                self._inner(value, path)
        except UnsupportedLeaf as error:
            if not self.is_target:
                raise
            self.leaves[path], self.unfit[path] = _UNKNOWN, error

    def enter(self, value: Any, path: str) -> None:
        if is_stateful(value):
            self.stateful[path] = value
            if not self._statefuls:
                self.owners[path] = value
            self._statefuls += 1
            self.visit(state_of(value, path), path)
            self._statefuls -= 1
            return
        opened = open_container(value, path)
        if opened is not None:
            self._children(opened, path)
        else:
            self._unknown(value, path)

    def ask_generators_again(self) -> None:
        """For their state after all others gave theirs, who may draw numbers for that, as data loaders do."""
        last = next(reversed(self.stateful), None)
        for path, owner in list(self.stateful.items()):
            if isinstance(owner, RNGState) and path != last:
                self.visit(state_of(owner, path), path)
        for path, generator in self._generators.items():
            self.leaves[path] = encode(generator, path)

    def flat(self, replicated: frozenset[str]) -> Flat:
        found = self.leaves, self.containers, self.aliases(), self.stateful, self.owners, self.sharded
        return Flat(*found, replicated, self.unfit, self.opaque)

    def aliases(self) -> tuple[tuple[str, ...], ...]:
        count = Counter(self._pointers.values())
        shared: dict[int, list[str]] = defaultdict(list)
        for path, at in self._pointers.items():
            if count[at] > 1:
                shared[at].append(path)
        groups: dict[Any, list[str]] = defaultdict(list)
        for path in chain.from_iterable(shared.values()):
            groups[identity(self.leaves[path].tensor)].append(path)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def _inner(self, value: Any, path: str) -> None:
        if id(value) in self._open:
            raise StateError(f"the state contains itself at {path!r}: a cycle cannot be stored")
        if len(self._open) >= _MOST_NESTED:
            raise StateError(f"the state is nested deeper than {_MOST_NESTED} levels at {path!r}")
        self._open.add(id(value))
        try:
            self.enter(value, path)
        finally:
            self._open.discard(id(value))

    def _children(self, opened: tuple[Container, Sequence[object]], path: str) -> None:
        container, children = opened
        self.containers[path] = container
        prefix = f"{path}/" if path else ""
        segments = [segment(key) for key in container.keys]
        if len(set(segments)) < len(segments):
            raise StateError(f"{path!r} has several keys that are equal once stored, such as NaN")
        for name, child in zip(segments, children, strict=True):
            self.visit(child, prefix + name)

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        if composites.is_dense(tensor):
            if missing := missing_memory(tensor):
                raise UnsupportedLeaf(path, *missing, use="store or fill")
            require_storable(path, tensor.itemsize, tensor.shape)
            self.leaves[path], self._pointers[path] = TensorLeaf(tensor), tensor.data_ptr()
        else:
            self._composite(tensor, path)

    def _composite(self, tensor: torch.Tensor, path: str) -> None:
        try:
            opened = composites.open_composite(tensor, path)
        except UnsupportedLeaf:
            if tensor.is_meta or not (self.allow_pickle or (self.is_target and tensor.is_nested)):
                raise
            self._unknown(tensor, path)
        else:
            self._children(opened, path)

    def _numpy(self, array: np.ndarray[Any, Any], path: str) -> None:
        try:
            dtype_name(array.dtype)
        except TypeError as error:
            raise UnsupportedLeaf(path, "a numpy array", f"{error}: store plain values or numbers") from None
        self.leaves[path], self._pointers[path] = TensorLeaf(array), pointer(array)

    def _unknown(self, value: Any, path: str) -> None:
        if self.is_target:
            self.leaves[path] = _UNKNOWN
            if isinstance(value, torch.Tensor):
                self.opaque[path] = "a nested tensor" if _is_nested(value) else f"a {type_name(value)}"
            return
        if not self.allow_pickle:
            _refuse_array(value, path)
        self.leaves[path] = encode(value, path, allow_pickle=self.allow_pickle)


def _is_nested(tensor: torch.Tensor) -> bool:
    """Also of subclasses that refuse to tell, as ShardedTensor does."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - has no public name
        return tensor.is_nested


def _refuse_array(value: object, path: str) -> None:
    """Raises UnsupportedLeaf for a subclass of tensors or arrays."""
    if isinstance(value, torch.Tensor):
        if _is_nested(value):
            raise composites.unsupported(value, path)
        what, advice = ("not initialised yet", CALL_LAZY) if is_lazy(value) else (type_name(value), _SUBCLASS)
        raise UnsupportedLeaf(path, what, advice)
    if isinstance(value, np.ndarray):
        raise UnsupportedLeaf(path, type_name(value), "a numpy subclass: store what view(np.ndarray) gives")
