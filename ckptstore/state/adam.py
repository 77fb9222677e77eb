"""The tensors of a state that Adam changes together, found in its optimizers, and what their last step was."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ckptstore.format.codecs.adam_arithmetic import Number
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.state.paths import join
from ckptstore.state.tensors import TensorLeaf, same_place
from ckptstore.state.tree import Flat, find_stateful

_EXACTLY = frozenset({torch.optim.Adam, torch.optim.AdamW})
_NUMBERS = {torch.float32: Number.FLOAT32, torch.bfloat16: Number.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One weight and what Adam keeps of it: tensors of one dtype and one shape.

    Attributes:
        weight, first, second: logical paths of the weight, `exp_avg` and `exp_avg_sq`.
        count: logical path of the number of steps.
        group: logical path of the weight's group of hyperparameters.
        step: the last step, with the hyperparameters of now; a scheduler may have changed them since.
    """

    weight: str
    first: str
    second: str
    count: str
    group: str
    step: Step


def find_recipes(app_state: Mapping[str, object], flat: Flat) -> list[Recipe]:
    """Of every torch.optim.Adam and AdamW in a state, of which `flat` is what `flatten` made.

    Left out are weights without moments as yet, weights that are not in the state, amsgrad, dtypes other than float32
    and bfloat16, and subclasses of these optimizers, which may compute what they like.
    """
    places: dict[Hashable, str] = {}
    for path, leaf in flat.leaves.items():
        if isinstance(leaf, TensorLeaf) and leaf.nbytes:
            places.setdefault(same_place(leaf.tensor), path)
    found = find_stateful(app_state)
    return [
        recipe
        for path, value in found.items()
        if type(value) in _EXACTLY
        for recipe in _of_optimizer(value, path, places)
    ]


def _of_optimizer(optimizer: torch.optim.Optimizer, path: str, places: Mapping[Hashable, str]) -> Iterator[Recipe]:
    for number, group in enumerate(optimizer.param_groups):
        where = join(path, "param_groups", str(number))
        for param in group["params"]:
            kept = optimizer.state.get(param, {})
            if group["amsgrad"] or not _is_plain(param, kept):
                continue
            tensors = param, kept["exp_avg"], kept["exp_avg_sq"], kept["step"]
            paths = [places[place] for place in map(same_place, tensors) if place in places]
            if len(paths) == len(tensors):
                weight, first, second, count = paths
                yield Recipe(weight, first, second, count, where, _step(group, param, kept))


def _is_plain(param: Tensor, kept: Mapping[str, Any]) -> bool:
    """Whether Adam keeps both moments in the dtype and shape of the parameter."""
    moments = [kept.get("exp_avg"), kept.get("exp_avg_sq")]
    alike = [isinstance(one, Tensor) and (one.dtype, one.shape) == (param.dtype, param.shape) for one in moments]
    return all(alike) and param.dtype in _NUMBERS and isinstance(kept.get("step"), Tensor)


def _step(group: Mapping[str, Any], param: Tensor, kept: Mapping[str, Any]) -> Step:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    return Step(
        lr=float(lr),
        betas=(float(beta1), float(beta2)),
        eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
        decoupled=bool(group["decoupled_weight_decay"]),
        count=float(kept["step"]),
        number=_NUMBERS[param.dtype],
        single=isinstance(lr, Tensor) and lr.dtype == torch.float32,
    )
