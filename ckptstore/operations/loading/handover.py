"""Handing what was loaded to the objects of a live state, each in the way it takes it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ckptstore.operations.loading.fitting import Fitting
from ckptstore.operations.loading.optimizer_loading import load_optimizer
from ckptstore.operations.loading.ownership import Ownership
from ckptstore.state.addresses import identity, same_place
from ckptstore.state.arrays import Array, as_tracked_like
from ckptstore.state.clones import clone
from ckptstore.state.composites import is_dense
from ckptstore.state.containers import assign_children, open_container
from ckptstore.state.paths import is_within, join, segment
from ckptstore.state.shards import is_sharded, part_of
from ckptstore.state.stateful import RNGState, StateDict, is_exact, noting, state_of
from ckptstore.state.tree import is_stateful
from ckptstore.state.unflatten import unflatten
from ckptstore.state.values import decode


@dataclass(slots=True)
class Handover:
    """Hands what was loaded to the objects of a state."""

    owned: Ownership
    fitting: Fitting
    loaded: dict[str, object]
    allow_pickle: bool
    _last: list[tuple[RNGState, str]] = field(default_factory=list)
    _generators: list[tuple[torch.Generator, object]] = field(default_factory=list)

    def hand_over(self, into: MutableMapping[str, Any]) -> None:
        """All of it; random state at the end, since other objects may draw numbers while they load."""
        for name, live in list(into.items()):
            renewed = self._visit(live, segment(name))
            if renewed is not live:
                into[name] = renewed
        for owner, path in self._last:
            self._load(owner, path)
        for generator, loaded in self._generators:
            _renewed(generator, loaded)

    def _visit(self, live: Any, path: str) -> Any:
        """What stands at `path` now: `live` itself where it can be changed, something new otherwise."""
        if isinstance(live, RNGState):
            self._last.append((live, path))
            return live
        if is_stateful(live):
            self._load(live, path)
            return live
        if path in self.owned.extra_states and self.owned.whole(path) and self.owned.touches(path):
            return self._built(path)
        if path in self.loaded:
            if isinstance(live, torch.Generator):
                self._generators.append((live, self.loaded[path]))
            return _renewed(live, self.loaded[path])
        if path in self.fitting.rebuilt:
            return _replaced(live, self._built(path))
        known = path in self.owned.flat.containers and not isinstance(live, torch.Tensor)
        opened = open_container(live, path) if known else None
        if opened is None:
            return live
        container, children = opened
        renewed = [
            self._visit(child, join(path, segment(key))) for key, child in zip(container.keys, children, strict=True)
        ]
        changed = any(new is not old for new, old in zip(renewed, children, strict=True))
        return assign_children(live, container, renewed, path) if changed else live

    def _load(self, owner: Any, path: str) -> None:
        """Give a stateful object its part of the commit, if that has one for it."""
        if not self.owned.touches(path):
            return
        state = self._state_of(owner, path)
        if isinstance(owner, torch.nn.Module):
            _put_own_tensors(owner, state)
        with noting(f"while giving {path!r} the commit's state in load_state_dict()"):
            if isinstance(owner, torch.optim.Optimizer):
                load_optimizer(owner, state)
            else:
                owner.load_state_dict(state)

    def _state_of(self, owner: Any, path: str) -> Any:
        """What it is to load. A `StateDict` keeps what is in it, as a dict does."""
        if not self.owned.whole(path):
            return self._visit(state_of(owner, path), path)
        if isinstance(owner, StateDict):
            return self._with_empty(self._visit(state_of(owner, path), path), path)
        return self._built(path, self.loaded if is_exact(owner) or _loads_in_place(owner) else self._set_apart(path))

    def _with_empty(self, state: dict[Any, Any], path: str) -> dict[Any, Any]:
        """With just the commit's keys, also of containers without leaves, which nothing else records."""
        encoded = self.owned.manifest.containers[path].keys
        places = {decode(key, path, allow_pickle=self.allow_pickle): join(path, segment(key)) for key in encoded}
        made = {key: self._built(place) for key, place in places.items() if key not in state}
        return {key: value for key, value in state.items() if key in places} | made

    def _set_apart(self, path: str) -> dict[str, object]:
        """Copies of what was filled there: who loads it may begin with what it has, to reset it for instance.

        Not of what others have too, which may stay one only so.
        """
        ties = [group for group in self.fitting.ties() if not all(is_within(leaf, {path}) for leaf in group)]
        shared = {leaf for group in ties for leaf in group}
        shared |= self.fitting.sharded.keys()
        whole = [leaf for leaf in self.fitting.targets if leaf not in shared and is_within(leaf, {path})]
        own: dict[str, Any] = {leaf: self.loaded[leaf] for leaf in whole}
        copies = {key: _copied(array) for key, array in {id(array): array for array in own.values()}.items()}
        return self.loaded | {leaf: copies[id(array)] for leaf, array in own.items()}

    def _built(self, path: str, loaded: Mapping[str, object] | None = None) -> Any:
        leaves = self.loaded if loaded is None else loaded
        return unflatten(self.owned.manifest.containers, leaves, root=path, allow_pickle=self.allow_pickle)


def _copied(array: Array) -> Array:
    copy = clone(array)
    if isinstance(array, torch.Tensor) and isinstance(copy, torch.Tensor):
        return as_tracked_like(copy, array)
    return copy


def _loads_in_place(owner: object) -> bool:
    """Whether it gives the state to torch's own objects, which copy tensors onto themselves."""
    kinds = (torch.nn.Module, torch.optim.Optimizer)
    return isinstance(owner, kinds) or any(isinstance(one, kinds) for one in getattr(owner, "__dict__", {}).values())


def _replaced(live: torch.Tensor, built: torch.Tensor) -> torch.Tensor:
    """The live tensor with the other's content where torch can do that, the other one where it cannot."""
    try:
        with torch.no_grad():
            return live.copy_(built)
    except RuntimeError:
        return built


def _renewed(live: Any, loaded: Any) -> Any:
    """The loaded value; in the live object where others may hold on to that."""
    if type(live) is type(loaded) is list:
        live[:] = loaded
        return live
    if isinstance(live, torch.Generator) and isinstance(loaded, torch.Generator) and live.device == loaded.device:
        live.set_state(loaded.get_state())
        return live
    return live if _is_one_memory(live, loaded) else loaded


def _is_one_memory(live: Any, loaded: Any) -> bool:
    """Whether it was filled through another one that it is tied to, which may be no Parameter where it is one."""
    if live is loaded:
        return True
    return _is_array(live) and _is_array(loaded) and same_place(live) == same_place(loaded)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, torch.Tensor) and is_dense(value))


def _put_own_tensors(module: torch.nn.Module, state: dict[str, Any]) -> None:
    """Put the module's own tensors where these are filled already: copying one onto itself costs nothing."""
    if getattr(module.state_dict, "__func__", None) is not torch.nn.Module.state_dict:
        return  # it may take no arguments, and give what is no tensor of its own
    for key, own in module.state_dict(keep_vars=True).items():
        if isinstance(own, torch.Tensor) and isinstance(state.get(key), torch.Tensor) and _is_filled(own, state[key]):
            state[key] = own


def _is_filled(own: torch.Tensor, value: torch.Tensor) -> bool:
    if is_sharded(own) or is_sharded(value):
        return is_sharded(own) and is_sharded(value) and identity(part_of(own)) == identity(part_of(value))
    return is_dense(own) and is_dense(value) and own.device == value.device and identity(own.data) == identity(value)
