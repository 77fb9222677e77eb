"""Whether a commit fits live state, and what of it goes where. Nothing is written here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from ckptstore.errors import StateMismatch
from ckptstore.format.manifest import Container, Entry, Manifest, TensorEntry
from ckptstore.operations.paths import chosen
from ckptstore.operations.renumbering import renumbered
from ckptstore.state import composites
from ckptstore.state.casts import can_cast, check_takes
from ckptstore.state.dtypes import torch_dtype
from ckptstore.state.paths import join, segment, split
from ckptstore.state.shards import is_sharded
from ckptstore.state.stateful import StateDict
from ckptstore.state.tensors import (
    Array,
    TensorLeaf,
    byte_range,
    check_fits,
    is_plain_memory,
    pointer,
    same_place,
    share_memory,
)
from ckptstore.state.tree import Flat, flatten

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_EXTRA_STATE = object()
"""Stands for the owner of what a module's `get_extra_state` gave."""


class Fitting:
    """One commit beside one target.

    A path belongs to the stateful object above it, its owner. An owner is exact when it must have the commit's paths;
    the others judge their state themselves, and get the commit's whole: they are free. A module's extra state is free.

    Attributes:
        manifest: the commit's, as the target's optimizers know it.
        extra_states: paths of what modules gave beside their tensors.
    """

    def __init__(
        self,
        manifest: Manifest,
        into: Mapping[str, Any],
        globs: Sequence[str] | None,
        *,
        strict: bool,
        allow_cast: bool,
    ) -> None:
        self._globs, self._strict, self._allow_cast = globs, strict, allow_cast
        self._flat = flatten(into, allow_pickle=True)
        owners = self._flat.owners
        self._optimizers = {path: owner for path, owner in owners.items() if isinstance(owner, torch.optim.Optimizer)}
        self.manifest = renumbered(manifest, list(self._optimizers))
        self.extra_states = frozenset(_extra_states(self._flat, owners))
        self._owners = owners | dict.fromkeys(self.extra_states, _EXTRA_STATE)

    def check(self, values: Mapping[str, object]) -> None:
        """Raises StateMismatch with everything that does not fit; `values` are the wanted plain ones."""
        own, theirs = chosen(self._flat.leaves, self._globs), self._selected
        missing = [path for path in own if path not in theirs and not self._is_free(path)]
        missing += [path for path in self._owners if self._is_free(path) and not self.touches(path)]
        unexpected = [path for path in theirs if path not in self._flat.leaves and not self._is_free(path)]
        different = [*self._other_forms(), *self._other_composites(), *self._other_ties(), *self._overlaps()]
        different += self._other_groups(values)
        if different or (self._strict and (missing or unexpected)):
            raise StateMismatch(missing, unexpected, different)

    @cached_property
    def wanted(self) -> dict[str, Entry]:
        """The commit's leaves that are loaded."""
        return {
            path: entry for path, entry in self._selected.items() if path in self._flat.leaves or self._is_free(path)
        }

    @cached_property
    def names(self) -> dict[str, Entry]:
        """The leaves by which optimizers may tell their parameters apart."""
        paths = [
            f"{path}/param_names" for root in self._optimizers for path in self._groups(root) if self.touches(root)
        ]
        return {path: self.manifest.entries[path] for path in paths if path in self.manifest.entries}

    @cached_property
    def targets(self) -> dict[str, Array]:
        """Live arrays that are filled where they are."""
        return {
            path: self._arrays[path]
            for path, misfit in self._misfits.items()
            if misfit is None and path not in self._torn and path.rpartition("/")[0] not in self.rebuilt
        }

    @cached_property
    def sharded(self) -> dict[str, DTensor]:
        """Those of which this process has a part, `made` ones too."""
        live = {path: tensor for path, tensor in self._flat.sharded.items() if path in self.targets}
        return live | {path: tensor for path, tensor in self.made.items() if is_sharded(tensor)}

    @cached_property
    def made(self) -> dict[str, torch.Tensor]:
        """New tensors for state that optimizers lack, where it is sharded as its parameter is, or cast."""
        return dict(self._lacked())

    @cached_property
    def rebuilt(self) -> frozenset[str]:
        """Sparse and quantised tensors of the commit's form whose parts are of another size: these are made anew."""
        kinds = {path: own for path, own in self._flat.containers.items() if own.kind in composites.KINDS}
        same = {path for path, own in kinds.items() if self._has_same_form(path, own)}
        return frozenset(path for path in same if not self._fits_in_place(path, kinds[path]))

    def ties(self) -> Iterator[list[str]]:
        """Groups of targets that are one and the same memory."""
        for group in self._tied:
            present = [path for path in group if path in self.targets]
            if len(present) > 1:
                yield present

    def touches(self, path: str) -> bool:
        """Whether the commit has something for the stateful object at `path`."""
        if self._globs is None and path in self.manifest.containers:
            return True
        return any(_is_under(leaf, path) for leaf in self.wanted)

    def whole(self, path: str) -> bool:
        """Whether the owner of `path` gets the commit's state as it was, instead of its own with parts replaced."""
        root = self._root(path)
        return root in self._complete and (self._strict or not self._is_exact(root))

    @cached_property
    def _selected(self) -> dict[str, Entry]:
        names = {split(path)[0] for path in [*self._flat.leaves, *self._flat.containers] if path}
        entries = chosen(self.manifest.entries, self._globs)
        return {path: entry for path, entry in entries.items() if split(path)[0] in names}

    @cached_property
    def _complete(self) -> set[str]:
        """Paths of the owners of which the globs leave nothing out."""
        if self._globs is None:
            return set(self._owners)
        others = self.manifest.entries.keys() - self._selected.keys()
        return set(map(self._root, self._selected)) - set(map(self._root, others)) - {""}

    def _root(self, path: str) -> str:
        """The path of its owner, or "" if it has none."""
        while path and path not in self._owners:
            path = path.rpartition("/")[0]
        return path

    def _is_exact(self, root: str) -> bool:
        return isinstance(self._owners[root], torch.nn.Module | StateDict)

    def _is_free(self, path: str) -> bool:
        root = self._root(path)
        return root in self._complete and not self._is_exact(root)

    def _must_fit(self, path: str) -> bool:
        return not self._is_free(path) or isinstance(self._owners[self._root(path)], torch.optim.Optimizer)

    def _lacked(self) -> Iterator[tuple[str, torch.Tensor]]:
        for root, owner in self._owners.items():
            if isinstance(owner, torch.optim.Optimizer) and self._is_free(root):
                for number, parameter in enumerate(one for group in owner.param_groups for one in group["params"]):
                    yield from self._lacked_of(parameter, f"{root}/state/{number}")

    def _lacked_of(self, parameter: torch.Tensor, root: str) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self._beneath(root):
            entry = self.wanted.get(path)
            there = isinstance(self._flat.leaves.get(path), TensorLeaf)
            if there or not isinstance(entry, TensorEntry) or entry.library != "torch":
                continue
            committed = torch_dtype(path, entry.dtype)
            dtype = parameter.dtype if self._allow_cast and _follows(path, committed, parameter) else committed
            if is_sharded(parameter) and entry.shape == tuple(parameter.shape):
                yield path, torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            elif dtype != committed:
                yield path, torch.empty(entry.shape, dtype=dtype, device=parameter.device)

    def _beneath(self, path: str) -> Iterator[str]:
        """The commit's leaves there, but for parts of sparse and quantised tensors."""
        container = self.manifest.containers.get(path)
        if container is None:
            yield path
        elif container.kind not in composites.KINDS:
            for key in container.keys:
                yield from self._beneath(join(path, segment(key)))

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        """The target's arrays at wanted paths."""
        leaves = ((path, self._flat.leaves.get(path)) for path in self.wanted)
        return {path: leaf.tensor for path, leaf in leaves if isinstance(leaf, TensorLeaf)}

    @cached_property
    def _misfits(self) -> dict[str, str | None]:
        """The paths at which both have an array, and what keeps the target's from taking the commit's bytes."""
        entries = {path: entry for path, entry in self.wanted.items() if isinstance(entry, TensorEntry)}
        return {
            path: self._misfit(path, entries[path], array) for path, array in self._arrays.items() if path in entries
        }

    def _misfit(self, path: str, entry: TensorEntry, array: Array) -> str | None:
        """What keeps the array from taking the entry's elements, or its part of them."""
        whole = self._flat.sharded.get(path)
        if whole is not None and entry.shape != tuple(whole.shape):
            return f"{path}: shape {list(entry.shape)} in the commit, {list(whole.shape)} in the target"
        part = entry if whole is None else replace(entry, shape=tuple(array.shape), order=None)
        if self._is_part(path) or not self._must_fit(path):
            return check_fits(path, part, array)
        return check_takes(path, part, array, allow_cast=self._allow_cast)

    def _is_part(self, path: str) -> bool:
        """Whether it is a part of a sparse or quantised tensor of the target."""
        above = self._flat.containers.get(path.rpartition("/")[0])
        return above is not None and above.kind in composites.KINDS

    def _other_forms(self) -> Iterator[str]:
        for path, wanted in self.wanted.items():
            leaf = self._flat.leaves.get(path)
            if leaf is None or not self._must_fit(path) or path.rpartition("/")[0] in self.rebuilt:
                continue
            if path in self._misfits:
                misfit = self._misfits[path]
                if misfit is not None:
                    yield misfit
            elif self._is_free(path):
                continue  # an optimizer's value may have become a tensor
            elif isinstance(leaf, TensorLeaf):
                yield f"{path}: a plain value in the commit, a tensor in the target"
            elif isinstance(wanted, TensorEntry):
                yield f"{path}: a tensor in the commit, a plain value in the target"

    def _other_composites(self) -> Iterator[str]:
        """A sparse or quantised tensor is filled through its parts, so that what is beside these must be the same."""
        for path, container in self._flat.containers.items():
            other = self.manifest.containers.get(path)
            involved = container.kind in composites.KINDS and self._must_fit(path) and self.touches(path)
            if involved and path not in self.rebuilt and other is not None and other != container:
                yield f"{path}: {_form(other)} in the commit, {_form(container)} in the target"

    def _has_same_form(self, path: str, own: Container) -> bool:
        """Whether the commit has a whole tensor of the same layout, size and dtype there."""
        other = self.manifest.containers.get(path)
        if other is None or other.kind != own.kind:
            return False
        parts = [f"{path}/{key}" for key in own.keys]
        values = f"{path}/{'int_repr' if 'dtype' in own.attributes else 'values'}"
        mine, theirs = self._flat.leaves[values], self.wanted.get(values)
        if not isinstance(mine, TensorLeaf) or not isinstance(theirs, TensorEntry):
            return False
        forms = [(found.attributes.get("size"), found.attributes.get("dtype")) for found in (own, other)]
        sized = "size" in own.attributes or mine.shape == theirs.shape
        return forms[0] == forms[1] and sized and mine.dtype == theirs.dtype and self.wanted.keys() >= set(parts)

    def _fits_in_place(self, path: str, own: Container) -> bool:
        if own != self.manifest.containers[path]:
            return False
        parts = ((f"{path}/{key}", self._flat.leaves[f"{path}/{key}"]) for key in own.keys)
        entries = ((part, leaf, self.wanted[part]) for part, leaf in parts)
        return all(
            isinstance(leaf, TensorLeaf)
            and isinstance(entry, TensorEntry)
            and check_fits(part, entry, leaf.tensor) is None
            for part, leaf, entry in entries
        )

    def _other_ties(self) -> Iterator[str]:
        for path, first in self._torn.items():
            if not self._is_free(path):
                yield f"{path}: tied to {first} in the target, but another tensor in the commit"

    @cached_property
    def _torn(self) -> dict[str, str]:
        """Path → other path of what is tied in the target and not in the commit."""
        pairs = ((path, group[0]) for group in self._tied for path in group[1:])
        return {path: first for path, first in pairs if _content(self.wanted[path]) != _content(self.wanted[first])}

    @cached_property
    def _tied(self) -> list[list[str]]:
        """Groups of several wanted paths that show one memory of the target."""
        arrays = {path: array for path, array in self._arrays.items() if array.nbytes}
        begin = Counter(map(pointer, arrays.values()))
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for path, array in arrays.items():
            if begin[pointer(array)] > 1:
                groups[same_place(array)].append(path)
        return [group for group in groups.values() if len(group) > 1]

    def _overlaps(self) -> Iterator[str]:
        """Targets that share a part of their memory, looked for in the order in which they lie."""
        repeated = {path for group in self._tied for path in group[1:]}
        arrays = {path: array for path, array in self.targets.items() if array.nbytes and path not in repeated}
        ranges = sorted((*byte_range(array), path) for path, array in arrays.items() if is_plain_memory(array))
        reaching: list[tuple[int, str]] = []
        for start, end, path in ranges:
            reaching = [(stop, other) for stop, other in reaching if stop > start]
            for _, other in reaching:
                if share_memory(arrays[path], arrays[other]):
                    yield f"{path}: shares memory with {other} in the target"
            reaching.append((end, path))

    def _other_groups(self, values: Mapping[str, object]) -> Iterator[str]:
        """An optimizer's groups of parameters cannot be made to fit."""
        for root, owner in self._optimizers.items():
            paths = self._groups(root)
            here = [len(group["params"]) for group in owner.param_groups]
            there = [len(_listed(values, f"{path}/params")) for path in paths]
            if paths and self._is_free(root) and here != there:
                yield f"{root}: groups of {there} parameters in the commit, of {here} in the target"
            elif self.touches(f"{root}/state") or any(f"{path}/param_names" in self.wanted for path in paths):
                moved = _moved(owner, [name for path in paths for name in _listed(values, f"{path}/param_names")])
                if moved:
                    yield f"{root}: its parameters have another order in the commit: {moved}; {_REORDER}"

    def _groups(self, root: str) -> list[str]:
        """The paths of an optimizer's groups of parameters in the commit."""
        groups = self.manifest.containers.get(f"{root}/param_groups")
        return [f"{root}/param_groups/{number}" for number in groups.keys] if groups else []


_REORDER = "make it in that order, or let a hook of register_load_state_dict_pre_hook bring its state into order"


def _listed(values: Mapping[str, object], path: str) -> list[object]:
    found = values.get(path)
    return found if isinstance(found, list) else []


def _moved(optimizer: torch.optim.Optimizer, there: list[object]) -> str | None:
    """The first parameter that another takes the place of, by the names that torch's optimizers may know.

    Other names say nothing about the order, and the user's own code may put it right.
    """
    here = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    hooks = getattr(optimizer, "_optimizer_load_state_dict_pre_hooks", None)
    own = hooks or type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
    if own or sorted(map(str, here)) != sorted(map(str, there)):
        return None
    pairs = enumerate(zip(here, there, strict=True))
    swapped = (
        f"number {number} is {theirs!r}, and {ours!r} here" for number, (ours, theirs) in pairs if ours != theirs
    )
    return next(swapped, None)


def _follows(path: str, committed: torch.dtype, parameter: torch.Tensor) -> bool:
    """Whether state of an optimizer is cast to its parameter's dtype, as `Optimizer.load_state_dict` does it."""
    floats = committed.is_floating_point and parameter.is_floating_point()
    alike = floats or (committed.is_complex and parameter.is_complex())
    return alike and can_cast(committed, parameter.dtype) and split(path)[-1] != "step"


def _content(entry: Entry) -> object:
    return (entry.dtype, entry.chunks, entry.inline) if isinstance(entry, TensorEntry) else entry


def _extra_states(flat: Flat, owners: Mapping[str, object]) -> Iterator[str]:
    for path in (*flat.leaves, *flat.containers):
        if _is_extra_state(path) and isinstance(owners.get(path.rpartition("/")[0]), torch.nn.Module):
            yield path


def _is_extra_state(path: str) -> bool:
    return path.rpartition("/")[2].rpartition(".")[2] == "_extra_state"


def _form(container: Container) -> str:
    return f"{container.kind} {dict(container.attributes)}"


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
