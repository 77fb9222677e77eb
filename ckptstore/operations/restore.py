"""Checkout into live state: everything is checked first, then tensors are filled in place and objects told.

Plain state and modules must have the commit's paths exactly. Other stateful objects (optimizers, schedulers, loaders)
may hold more or less than the commit, as a fresh optimizer does: they get the commit's state whole, and judge it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ckptstore.chunkstore import DEFAULT_BUDGET, ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import StateMismatch
from ckptstore.format.manifest import Entry, Manifest, TensorEntry
from ckptstore.operations.load import load_leaves
from ckptstore.operations.paths import chosen
from ckptstore.state.stateful import RNGState, StateDict
from ckptstore.state.tensors import Array, TensorLeaf, check_fits
from ckptstore.state.tree import Flat, find_stateful, flatten, unflatten


def restore(
    chunks: ChunkStore,
    manifest: Manifest,
    into: Mapping[str, Any],
    *,
    paths: tuple[str, ...] | None = None,
    strict: bool = True,
    allow_pickle: bool = False,
    budget: int = DEFAULT_BUDGET,
    advance: Advance = ignore,
) -> None:
    """Load the commit's leaves under the names in `into`, and of these only the ones that `paths` selects.

    Raises:
        StateMismatch: all missing and unexpected paths (when `strict`) and all other shapes and dtypes, before
            anything was written.
        CorruptData: in the middle; the target is then partly loaded.
    """
    plan = _Plan(manifest, into, flatten(into, allow_pickle=True), paths, strict)
    plan.check()
    loaded = load_leaves(
        chunks, plan.wanted, plan.in_place, allow_pickle=allow_pickle, budget=budget, advance=advance
    )
    plan.apply(loaded, allow_pickle=allow_pickle)


@dataclass(frozen=True)
class _Plan:
    manifest: Manifest
    into: Mapping[str, Any]
    target: Flat
    paths: tuple[str, ...] | None
    strict: bool

    @cached_property
    def stateful(self) -> dict[str, Any]:
        """Path → object of every stateful in the target; random state last, since loading may draw numbers."""
        found = find_stateful(self.into)
        return dict(sorted(found.items(), key=lambda item: isinstance(item[1], RNGState)))

    @cached_property
    def selected(self) -> dict[str, Entry]:
        """The commit's entries under the target's names that `paths` selects."""
        entries = chosen(self.manifest.entries, self.paths)
        names = {path.split("/", 1)[0] for path in [*self.target.leaves, *self.target.containers]}
        return {path: entry for path, entry in entries.items() if path.split("/", 1)[0] in names}

    @cached_property
    def wanted(self) -> dict[str, Entry]:
        """What is loaded: without `strict`, only what the target has too."""
        return {
            path: entry
            for path, entry in self.selected.items()
            if path in self.target.leaves or self._free(path) or self.strict
        }

    @cached_property
    def in_place(self) -> dict[str, Array]:
        """Live tensors of the target that are filled where they are."""
        return {
            path: leaf.tensor
            for path, leaf in self.target.leaves.items()
            if isinstance(leaf, TensorLeaf)
            and isinstance(entry := self.wanted.get(path), TensorEntry)
            and check_fits(path, entry, leaf.tensor) is None
        }

    def check(self) -> None:
        """Raises StateMismatch with everything that does not fit."""
        strict_target = chosen(self.target.leaves, self.paths)
        missing = [path for path in strict_target if path not in self.selected and not self._free(path)]
        unexpected = [path for path in self.selected if path not in self.target.leaves and not self._free(path)]
        different = [*self._other_form(), *self._other_ties(), *self._other_groups()]
        if different or (self.strict and (missing or unexpected)):
            raise StateMismatch(missing, unexpected, different)

    def apply(self, loaded: dict[str, object], *, allow_pickle: bool) -> None:
        """Hand the loaded leaves to their objects and put plain values in place."""
        for path, owner in self.stateful.items():
            beneath = {leaf: loaded[leaf] for leaf in loaded if _under(leaf, path)}
            if beneath or (self.paths is None and path in self.manifest.containers):
                _load_state(owner, self._build(path, beneath, allow_pickle))
        plain = {path: leaf for path, leaf in loaded.items() if self._owner(path) is None}
        if plain:
            _graft(self.into, self._build("", plain, allow_pickle), self.stateful)

    def _build(self, root: str, loaded: dict[str, object], allow_pickle: bool) -> Any:
        """The state beneath `root`: the commit's, or where only a part was asked for, the target's with that part."""
        if self.paths is None and self.strict and root:
            return unflatten(self.manifest.containers, loaded, root=root, allow_pickle=allow_pickle)
        own = {
            path: leaf.tensor if isinstance(leaf, TensorLeaf) else leaf
            for path, leaf in self.target.leaves.items()
            if (_under(path, root) if root else path in loaded)
        }
        return unflatten(self.target.containers, own | loaded, root=root, allow_pickle=True)

    def _owner(self, path: str) -> Any:
        return next((owner for prefix, owner in self.stateful.items() if _under(path, prefix)), None)

    def _free(self, path: str) -> bool:
        """Whether the path belongs to an object that judges its own state."""
        exact = (torch.nn.Module, StateDict)
        owner = self._owner(path)
        return owner is not None and not isinstance(owner, exact) and self.paths is None

    def _other_form(self) -> Iterator[str]:
        for path, entry in self.selected.items():
            leaf = self.target.leaves.get(path)
            owner = self._owner(path)
            if leaf is None or (self._free(path) and not isinstance(owner, torch.optim.Optimizer)):
                continue
            if isinstance(leaf, TensorLeaf) and isinstance(entry, TensorEntry):
                misfit = check_fits(path, entry, leaf.tensor)
                if misfit is not None:
                    yield misfit
            elif isinstance(leaf, TensorLeaf) or isinstance(entry, TensorEntry):
                here, there = ("tensor", "value") if isinstance(entry, TensorEntry) else ("value", "tensor")
                yield f"{path}: a {here} in the commit, a {there} in the target"
