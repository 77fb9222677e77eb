"""Who has what of live state, and what of a commit is for whom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch.nn.parameter import is_lazy

from ckptstore.cached import cached_property
from ckptstore.format.manifest import Entry, Manifest
from ckptstore.operations.loading.known_ties import with_known_ties
from ckptstore.operations.loading.renumbering import renumbered
from ckptstore.operations.paths import chosen
from ckptstore.state.composites import KINDS
from ckptstore.state.paths import root_of, segment, split
from ckptstore.state.stateful import RNGState, is_exact
from ckptstore.state.tree import Flat

_EXTRA_STATE = object()
"""Stands for the owner of what a module's `get_extra_state` gave."""


class Ownership:
    """One commit's leaves beside the objects of one target.

    A path belongs to the stateful object above it, its owner. An owner that is not exact (see `is_exact`) gets the
    commit's state whole: its paths are free. So is a module's extra state.

    Attributes:
        flat: the target.
        strict: whether paths that only one side has are an error.
        apart: paths of what this rank had for itself.
        optimizers: path → optimizer.
        manifest: the commit's, as the target's optimizers know it, and with what its ties tell.
        extra_states: paths of what modules gave beside their tensors.
    """

    def __init__(
        self,
        manifest: Manifest,
        flat: Flat,
        globs: Sequence[str] | None,
        *,
        strict: bool,
        apart: Collection[str] = frozenset(),
    ) -> None:
        self.flat, self.strict, self.apart, self._globs = flat, strict, apart, globs
        owners = flat.owners
        self.optimizers = {path: owner for path, owner in owners.items() if isinstance(owner, torch.optim.Optimizer)}
        self.manifest = with_known_ties(renumbered(manifest, list(self.optimizers)), flat)
        self.extra_states = frozenset(_extra_states(flat, owners))
        self._owners = owners | dict.fromkeys(self.extra_states, _EXTRA_STATE)
        self._names = {split(path)[0] for path in [*flat.leaves, *flat.containers] if path}

    @cached_property
    def wanted(self) -> dict[str, Entry]:
        """The commit's leaves that are loaded."""
        return {path: entry for path, entry in self._selected.items() if path in self.flat.leaves or self.is_free(path)}

    @cached_property
    def uninitialised(self) -> set[str]:
        """Paths of what lazy modules have no shape for yet."""
        return {f"{path}/{segment(name)}" for path, owner in self.flat.stateful.items() for name in _lazy(owner)}

    def missing(self) -> list[str]:
        """Paths of which the commit has nothing."""
        own = [path for path in chosen(self.flat.leaves, self._globs) if path not in self._selected]
        idle = [path for path in self._owners if self.is_free(path) and not self.touches(path)]
        return [path for path in own if not self.is_free(path)] + idle

    def unexpected(self) -> list[str]:
        """Paths for which the target has no place."""
        return [path for path in self._selected if path not in self.wanted]

    def strange(self) -> list[str]:
        """What cannot be meant, however strict one is: objects or globs of which nothing at all is loaded."""
        theirs = {split(path)[0] for path in [*self.manifest.entries, *self.manifest.containers] if path}
        mine = ", ".join(sorted(self._names))
        if mine and not self._names & theirs:
            return [f"{mine}: the commit has {', '.join(sorted(theirs)) or 'nothing'}"]
        if mine and self._globs and not self._selected and chosen(self.manifest.entries, self._globs):
            return [f"paths={list(self._globs)}: selects nothing of {mine}"]
        if odd := list(self._without_generators()):
            return odd
        if self.strict:
            return []
        own, found = set(map(self._root, self.flat.leaves)), {self._root(path): path for path in self._selected}
        idle = (found.keys() & own) - set(map(self._root, self.wanted)) - {""}
        return [f"{root}: has nothing of the commit's, such as {found[root]}" for root in sorted(idle)]

    def _without_generators(self) -> Iterator[str]:
        loading = [path for path, owner in self._owners.items() if isinstance(owner, RNGState) and self.touches(path)]
        for path in loading:
            container = self.manifest.containers.get(path)
            keys = () if container is None else container.keys
            if not RNGState.holds_generators(keys):
                yield f"{path}: an RNGState, for which the commit has {', '.join(map(str, keys)) or 'no such state'}"

    def is_free(self, path: str) -> bool:
        """Whether its owner judges it."""
        root = self._root(path)
        return root in self._complete and not self._is_exact(root)

    def must_fit(self, path: str) -> bool:
        """Whether dtype and shape must be those of the target; optimizers do not look at them."""
        return not self.is_free(path) or isinstance(self._owners[self._root(path)], torch.optim.Optimizer)

    def is_of_module(self, path: str) -> bool:
        """Whether it is a module's, which copies what it gets into the tensor that it has."""
        return isinstance(self._owners.get(self._root(path)), torch.nn.Module)

    def selects(self, path: str) -> bool:
        """Whether the globs choose what the commit has there, or something beneath."""
        return path in self._above_selected

    def touches(self, path: str) -> bool:
        """Whether the commit has something for the stateful object at `path`."""
        if self._globs is None and path in self.manifest.containers:
            return True
        return path in self._above_wanted

    def whole(self, path: str) -> bool:
        """Whether the owner of `path` gets the commit's state as it was, instead of its own with parts replaced."""
        root = self._root(path)
        return root in self._complete and (self.strict or not self._is_exact(root))

    @cached_property
    def _selected(self) -> dict[str, Entry]:
        entries = chosen(self.manifest.entries, self._globs)
        return {path: entry for path, entry in entries.items() if split(path)[0] in self._names}

    @cached_property
    def _above_selected(self) -> set[str]:
        return _with_all_above(self._selected)

    @cached_property
    def _above_wanted(self) -> set[str]:
        return _with_all_above(self.wanted)

    @cached_property
    def _complete(self) -> set[str]:
        """Paths of the owners of which the globs leave nothing out."""
        if self._globs is None:
            return set(self._owners)
        others = self.manifest.entries.keys() - self._selected.keys()
        return set(map(self._root, self._selected)) - set(map(self._root, others)) - {""}

    def _root(self, path: str) -> str:
        """The path of its owner, or "" if it has none."""
        return root_of(path, self._owners)

    def _is_exact(self, root: str) -> bool:
        return is_exact(self._owners[root])


def loaded_whole(flat: Flat) -> set[str]:
    """Paths of what a part of a commit's state is of no use to: owners that judge it, and tensors made of parts."""
    owners = {path for path, owner in flat.owners.items() if not is_exact(owner)}
    composed = {path for path, container in flat.containers.items() if container.kind in KINDS}
    return owners | composed | {*_extra_states(flat, flat.owners)}


def _lazy(owner: object) -> Iterator[str]:
    if isinstance(owner, torch.nn.Module):
        named = [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers(remove_duplicate=False)]
        yield from (name for name, tensor in named if is_lazy(tensor))


def _extra_states(flat: Flat, owners: Mapping[str, object]) -> Iterator[str]:
    for path in (*flat.leaves, *flat.containers):
        if _is_extra_state(path) and isinstance(owners.get(path.rpartition("/")[0]), torch.nn.Module):
            yield path


def _is_extra_state(path: str) -> bool:
    return path.rpartition("/")[2].rpartition(".")[2] == "_extra_state"


def _with_all_above(paths: Collection[str]) -> set[str]:
    """The paths, and those of all containers that they are in."""
    found = set(paths)
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found
