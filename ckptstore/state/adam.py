"""The tensors of a state that Adam changes together, found in its optimizers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ckptstore.state.addresses import same_place
from ckptstore.state.paths import join
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat

_EXACTLY = frozenset({torch.optim.Adam, torch.optim.AdamW})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Logical paths of what makes up one step of one weight: tensors of one dtype and one shape, and numbers.

    Attributes:
        weight, first, second: the weight, `exp_avg` and `exp_avg_sq`.
        count: the number of steps.
        group: the weight's group of hyperparameters.
    """

    weight: str
    first: str
    second: str
    count: str
    group: str


def find_recipes(flat: Flat) -> list[Recipe]:
    """Of every torch.optim.Adam and AdamW in a state whose tensors are still where these optimizers have them.

    Left out are weights without moments as yet, weights that are not in the state, amsgrad, moments in another dtype
    than the weight, moments that are one tensor, or the weight's, and subclasses of these optimizers, which may compute
    anything. Nothing is read from a device.
    """
    optimizers = {path: it for path, it in flat.stateful.items() if type(it) in _EXACTLY}
    if not optimizers:
        return []
    places: dict[Hashable, str] = {}
    for path, leaf in flat.leaves.items():
        if isinstance(leaf, TensorLeaf) and leaf.nbytes:
            places.setdefault(leaf.place(), path)
    return [recipe for path, optimizer in optimizers.items() for recipe in _of_optimizer(optimizer, path, places)]


def _of_optimizer(optimizer: Any, path: str, places: Mapping[Hashable, str]) -> Iterator[Recipe]:
    for number, group in enumerate(optimizer.param_groups):
        where = join(path, "param_groups", str(number))
        for param in group["params"]:
            kept = optimizer.state.get(param, {})
            if group["amsgrad"] or not _is_plain(param, kept):
                continue
            tensors = param, kept["exp_avg"], kept["exp_avg_sq"]
            paths = [places[place] for place in map(same_place, tensors) if place in places]
            if len(set(paths)) == len(tensors):
                weight, first, second = paths
                yield Recipe(weight, first, second, join(first.rpartition("/")[0], "step"), where)


def _is_plain(param: Tensor, kept: Mapping[str, Any]) -> bool:
    """Whether Adam keeps both moments in the dtype and shape of the parameter."""
    moments = [kept.get("exp_avg"), kept.get("exp_avg_sq")]
    alike = [isinstance(one, Tensor) and (one.dtype, one.shape) == (param.dtype, param.shape) for one in moments]
    return all(alike)
