"""The steps that Adam made from one commit to the next, as the manifests of both record them, and what they made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ckptstore.chunkstore import Made, Piece
from ckptstore.errors import CkptStoreError
from ckptstore.format.codecs.adam import Adam
from ckptstore.format.codecs.adam_arithmetic import Kind, Number
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.format.manifest import Entry, TensorEntry, ValueEntry
from ckptstore.operations.committing.lineage import Lineage, form_of
from ckptstore.state.adam import Recipe
from ckptstore.state.values import decode

_BASES = 3
_WORK = {
    Number.FLOAT32: {Kind.WEIGHT: 1.0, Kind.SECOND: 0.7},
    Number.BFLOAT16: {Kind.WEIGHT: 1.3, Kind.SECOND: 1.25},  # a byte has twice as many numbers
}
_NUMBERS = {"float32": Number.FLOAT32, "bfloat16": Number.BFLOAT16}
_HYPERPARAMETERS = ("lr", "eps", "weight_decay", "betas", "decoupled_weight_decay")
_SCALARS = {"float32": "<f4", "float64": "<f8"}


class Trained:
    """Which chunks of a new commit a step of Adam made, and from which others.

    Args:
        recipes: what Adam changes together.
        entries: of the new commit, without digests.
        lineage: its parent.
    """

    def __init__(self, recipes: Iterable[Recipe], entries: Mapping[str, Entry], lineage: Lineage) -> None:
        self._entries, self._lineage = entries, lineage
        self._roles: dict[str, tuple[Recipe, Kind | None]] = {}
        for recipe in recipes:
            roles = {recipe.first: None, recipe.second: Kind.SECOND, recipe.weight: Kind.WEIGHT}
            if roles.keys() <= entries.keys() and not roles.keys() & self._roles.keys() and _alike([entries], recipe):
                self._roles |= {path: (recipe, kind) for path, kind in roles.items()}
        self._steps = cache(lambda recipe: steps_between(lineage.entries, entries, recipe))

    def order(self, numbers: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
        """Path and number of each chunk, in the order of writing: one stands behind the new ones it was made of."""
        made: list[tuple[str, int]] = []
        for recipe in dict.fromkeys(recipe for recipe, _ in self._roles.values()):
            paths = recipe.first, recipe.second, recipe.weight
            places = sorted((number, place) for place, path in enumerate(paths) for number in numbers[path])
            made += [(paths[place], number) for number, place in places]
        return made + [(path, number) for path, here in numbers.items() if path not in self._roles for number in here]

    def related(self, path: str, number: int, piece: Piece) -> Piece:
        """A chunk of a leaf with what it was made of."""
        recipe, kind = self._roles.get(path, (None, None))
        if recipe is None:
            return piece
        if kind is None:
            return piece._replace(goes_on=True)
        return piece._replace(made=partial(self._made, recipe, kind, number), goes_on=kind is Kind.SECOND)

    def _made(self, recipe: Recipe, kind: Kind, number: int) -> Made | None:
        steps = self._steps(recipe)
        paths = [recipe.weight] if kind is Kind.WEIGHT else [recipe.second, recipe.first]
        older = [self._lineage.base(path, self._entries[path], number) for path in paths] if steps else []
        if not steps or not all(older):
            return None
        return Made(Adam(kind, steps), tuple(older), newer=_BASES - len(older), work=_WORK[steps[0].number][kind])


def steps_between(older: Mapping[str, Entry], newer: Mapping[str, Entry], recipe: Recipe) -> list[Step]:
    """What the step may have been that led from one commit to another; none when it was not one step of Adam.

    A scheduler changes hyperparameters before a commit or after it: those of both commits may be what the step used.
    """
    before, now = _step(older, recipe), _step(newer, recipe)
    if before is None or now is None or now.count != before.count + 1 or not _alike([older, newer], recipe):
        return []
    return list(dict.fromkeys([now, replace(before, count=now.count)]))


def _alike(commits: Iterable[Mapping[str, Entry]], recipe: Recipe) -> bool:
    """Whether all tensors have one form in these commits, and so the same chunks."""
    paths = recipe.weight, recipe.first, recipe.second
    return len({form_of(entries.get(path)) for entries in commits for path in paths}) == 1


def _step(entries: Mapping[str, Entry], recipe: Recipe) -> Step | None:
    """What a commit records of the last step, or None when it does not record all."""
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
    except (LookupError, OverflowError, TypeError, ValueError, CkptStoreError):
        return None


def _value(entry: Entry) -> Any:
    return decode(entry.value, "a hyperparameter") if isinstance(entry, ValueEntry) else None


def _number(entry: Entry) -> float:
    """A number that is stored as such, or as a tensor. Of all else it raises what `_step` knows."""
    if isinstance(entry, TensorEntry):
        return float(np.frombuffer(entry.inline, _SCALARS[entry.dtype])[0])
    return float(_value(entry))
