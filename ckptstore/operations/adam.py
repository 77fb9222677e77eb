"""The steps that Adam made from one commit to the next, as the manifests of both tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ckptstore.errors import CkptStoreError
from ckptstore.format.codecs.adam_arithmetic import Number
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.format.manifest import Entry, TensorEntry, ValueEntry
from ckptstore.state.adam import Recipe
from ckptstore.state.values import decode

_NUMBERS = {"float32": Number.FLOAT32, "bfloat16": Number.BFLOAT16}
_HYPERPARAMETERS = ("lr", "eps", "weight_decay", "betas", "decoupled_weight_decay")
_SCALARS = {"float32": "<f4", "float64": "<f8"}


def steps_between(older: Mapping[str, Entry], newer: Mapping[str, Entry], recipe: Recipe) -> list[Step]:
    """What the step may have been that led from one commit to another; none when it was not one step of Adam.

    A scheduler changes hyperparameters before a commit or after it: those of both commits may be what the step used.
    """
    before, now = _step(older, recipe), _step(newer, recipe)
    if before is None or now is None or now.count != before.count + 1 or not _alike(older, newer, recipe):
        return []
    return list(dict.fromkeys([now, replace(before, count=now.count)]))


def _alike(older: Mapping[str, Entry], newer: Mapping[str, Entry], recipe: Recipe) -> bool:
    """Whether all tensors have one form in both commits, and so the same chunks."""
    paths = recipe.weight, recipe.first, recipe.second
    return len({_form(entries.get(path)) for entries in (older, newer) for path in paths}) == 1


def _form(entry: Entry | None) -> tuple[object, ...]:
    return (entry.dtype, entry.shape, entry.chunk_shape) if isinstance(entry, TensorEntry) else ()


def _step(entries: Mapping[str, Entry], recipe: Recipe) -> Step | None:
    """What a commit tells of the last step, or None when it does not tell all."""
    try:
        lr, eps, decay, betas, decoupled = (entries[f"{recipe.group}/{name}"] for name in _HYPERPARAMETERS)
        weight = entries[recipe.weight]
        beta1, beta2 = _value(betas)
        return Step(
            lr=_number(lr),
            betas=(float(beta1), float(beta2)),
            eps=_number(eps),
            weight_decay=_number(decay),
            decoupled=bool(_value(decoupled)),
            count=_number(entries[recipe.count]),
            number=_NUMBERS[weight.dtype if isinstance(weight, TensorEntry) else ""],
            single=isinstance(lr, TensorEntry),
        )
    except (LookupError, TypeError, ValueError, CkptStoreError):
        return None


def _value(entry: Entry) -> Any:
    return decode(entry.value, "a hyperparameter") if isinstance(entry, ValueEntry) else None


def _number(entry: Entry) -> float:
    """A number that is stored as such, or as a tensor. Raises LookupError, TypeError or ValueError for all else."""
    if isinstance(entry, TensorEntry):
        return float(np.frombuffer(entry.inline, _SCALARS[entry.dtype])[0])
    return float(_value(entry))
