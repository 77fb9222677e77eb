"""Whether a commit fits live state, and what of it goes where. Nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from ckptstore.errors import StateMismatch
from ckptstore.format.manifest import Container, Entry, Manifest, TensorEntry
from ckptstore.operations.paths import chosen
from ckptstore.state import composites
from ckptstore.state.paths import split
from ckptstore.state.stateful import StateDict
from ckptstore.state.tensors import Array, TensorLeaf, check_fits
from ckptstore.state.tree import find_stateful, flatten


class Fitting:
    """One commit beside one target.

    A path belongs to the stateful object above it, its owner. An owner is exact when it must have the commit's paths;
    the others judge their state themselves, and get the commit's whole.
    """

    def __init__(
        self, manifest: Manifest, into: Mapping[str, Any], globs: Sequence[str] | None, *, strict: bool
    ) -> None:
        self._manifest, self._globs, self._strict = manifest, globs, strict
        self._flat = flatten(into, allow_pickle=True)
        self._owners = find_stateful(into)

    def check(self, values: Mapping[str, object]) -> None:
        """Raises StateMismatch with everything that does not fit; `values` are the wanted plain ones."""
        own, theirs = chosen(self._flat.leaves, self._globs), self._selected
        missing = [path for path in own if path not in theirs and not self._is_free(path)]
        missing += [path for path in self._owners if self._is_free(path) and not self.touches(path)]
        unexpected = [path for path in theirs if path not in self._flat.leaves and not self._is_free(path)]
        different = [*self._other_forms(), *self._other_composites(), *self._other_ties(), *self._other_groups(values)]
        if different or (self._strict and (missing or unexpected)):
            raise StateMismatch(missing, unexpected, different)

    @cached_property
    def wanted(self) -> dict[str, Entry]:
        """The commit's leaves that are loaded."""
        return {
            path: entry for path, entry in self._selected.items() if path in self._flat.leaves or self._is_free(path)
        }

    @cached_property
    def targets(self) -> dict[str, Array]:
        """Live arrays that are filled where they are."""
        fitting: dict[str, Array] = {}
        for path, entry in self.wanted.items():
            leaf = self._flat.leaves.get(path)
            if not isinstance(leaf, TensorLeaf) or not isinstance(entry, TensorEntry):
                continue
            if check_fits(path, entry, leaf.tensor) is None:
                fitting[path] = leaf.tensor
        return fitting

    def ties(self) -> Iterator[list[str]]:
        """Groups of targets that are one and the same memory."""
        for group in self._flat.aliases:
            present = [path for path in group if path in self.targets]
            if len(present) > 1:
                yield present

    def touches(self, path: str) -> bool:
        """Whether the commit has something for the stateful object at `path`."""
        if self._globs is None and path in self._manifest.containers:
            return True
        return any(_is_under(leaf, path) for leaf in self.wanted)

    def whole(self, path: str) -> bool:
        """Whether the owner of `path` gets the commit's state as it was, instead of its own with parts replaced."""
        if self._globs is not None or self._owner(path) is None:
            return False
        return self._is_free(path) or self._strict

    @cached_property
    def _selected(self) -> dict[str, Entry]:
        names = {split(path)[0] for path in [*self._flat.leaves, *self._flat.containers] if path}
        entries = chosen(self._manifest.entries, self._globs)
        return {path: entry for path, entry in entries.items() if split(path)[0] in names}

    def _owner(self, path: str) -> object | None:
        segments = split(path)
        prefixes = ("/".join(segments[:count]) for count in range(1, len(segments) + 1))
        return next((self._owners[prefix] for prefix in prefixes if prefix in self._owners), None)

    def _is_free(self, path: str) -> bool:
        owner = self._owner(path)
        return self._globs is None and owner is not None and not isinstance(owner, torch.nn.Module | StateDict)

    def _must_fit(self, path: str) -> bool:
        return not self._is_free(path) or isinstance(self._owner(path), torch.optim.Optimizer)

    def _other_forms(self) -> Iterator[str]:
        for path, wanted in self.wanted.items():
            leaf = self._flat.leaves.get(path)
            if leaf is None or not self._must_fit(path):
                continue
            if isinstance(leaf, TensorLeaf) and isinstance(wanted, TensorEntry):
                misfit = check_fits(path, wanted, leaf.tensor)
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
            other = self._manifest.containers.get(path)
            involved = container.kind in composites.KINDS and self._must_fit(path) and self.touches(path)
            if involved and other is not None and other != container:
                yield f"{path}: {_form(other)} in the commit, {_form(container)} in the target"

    def _other_ties(self) -> Iterator[str]:
        for group in self._flat.aliases:
            present = [path for path in group if path in self.wanted]
            for path in present[1:]:
                if self.wanted[path] != self.wanted[present[0]]:
                    yield f"{path}: tied to {present[0]} in the target, but another tensor in the commit"

    def _other_groups(self, values: Mapping[str, object]) -> Iterator[str]:
        """An optimizer's groups of parameters cannot be made to fit."""
        for root, owner in self._owners.items():
            groups = self._manifest.containers.get(f"{root}/param_groups")
            if isinstance(owner, torch.optim.Optimizer) and groups is not None and self._is_free(root):
                here = [len(group["params"]) for group in owner.param_groups]
                params = [values.get(f"{root}/param_groups/{number}/params") for number in groups.keys]
                there = [len(found) if isinstance(found, list) else 0 for found in params]
                if here != there:
                    yield f"{root}: groups of {there} parameters in the commit, of {here} in the target"


def _form(container: Container) -> str:
    return f"{container.kind} {dict(container.attributes)}"


def _is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")
