"""Whether a commit fits live state, and what of it goes where. Nothing is written here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from ckptstore.cached import cached_property
from ckptstore.errors import StateMismatch, listing
from ckptstore.format.manifest import Container, Entry, TensorEntry
from ckptstore.operations.loading.optimizer_states import lacked_state, other_optimizers
from ckptstore.operations.loading.ownership import Ownership
from ckptstore.operations.loading.shared_memory import agree, overlaps, tied, together
from ckptstore.state import composites
from ckptstore.state.arrays import Array
from ckptstore.state.casts import misfit_with_cast
from ckptstore.state.shards import is_sharded
from ckptstore.state.tensors import TensorLeaf, misfit_of
from ckptstore.state.tree import CALL_LAZY

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_LOG = logging.getLogger("ckptstore")


class Fitting:
    """The arrays of one commit beside those of one target.

    An array of the target that takes the commit's bytes is filled where it is. A sparse or quantised tensor is filled
    through its parts, or made anew where only their sizes differ. What is free and does not fit is handed to its owner
    as the commit has it. All else is an error.

    Args:
        owned: who has what.
        strict: whether paths that only one side has are an error.
        allow_cast: whether other dtypes are cast.
    """

    def __init__(self, owned: Ownership, *, strict: bool, allow_cast: bool) -> None:
        self._owned, self._strict, self._allow_cast = owned, strict, allow_cast
        self._manifest, self._flat, self._wanted = owned.manifest, owned.flat, owned.wanted

    def check(self, values: Mapping[str, object], held: Mapping[str, Array]) -> None:
        """Raises StateMismatch with everything that does not fit.

        `values` are the wanted plain ones, and `held` what the commit has for arrays that are `overlapping`.
        """
        missing, unexpected = self._owned.missing(), self._owned.unexpected()
        different = [*self._owned.strange(), *self._other_forms(), *self._other_composites(), *self._other_layouts()]
        different += [*self._other_ties(), *self._overlaps(held), *other_optimizers(self._owned, values)]
        if different or (self._strict and (missing or unexpected)):
            raise StateMismatch(missing, unexpected, different)
        if missing or unexpected:
            kept, left = listing("kept as they were", missing), listing("of the commit, not loaded", unexpected)
            _LOG.info("only what both sides have is loaded\n%s", "\n".join(part for part in (kept, left) if part))

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
        """New tensors for state that optimizers lack, where it is a DTensor as its parameter is, or cast."""
        return dict(lacked_state(self._owned, allow_cast=self._allow_cast))

    @cached_property
    def rebuilt(self) -> frozenset[str]:
        """Sparse and quantised tensors of the commit's form whose parts are of another size: these are made anew.

        Not those into which a module would copy the new one, and torch cannot.
        """
        kinds = {path: own for path, own in self._flat.containers.items() if own.kind in composites.KINDS}
        compressed = (path for path, own in kinds.items() if own.kind in composites.COMPRESSED)
        kept = set(filter(self._owned.is_of_module, compressed))
        same = {path for path, own in kinds.items() if path not in kept and self._has_same_form(path, own)}
        return frozenset(path for path in same if not self._fits_in_place(path, kinds[path]))

    def ties(self) -> Iterator[list[str]]:
        """Groups of targets that are one and the same memory."""
        for group in self._tied:
            present = [path for path in group if path in self.targets]
            if len(present) > 1:
                yield present

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        """The target's arrays at wanted paths."""
        leaves = ((path, self._flat.leaves.get(path)) for path in self._wanted)
        return {path: leaf.tensor for path, leaf in leaves if isinstance(leaf, TensorLeaf)}

    @cached_property
    def _misfits(self) -> dict[str, str | None]:
        """The paths at which both have an array, and what keeps the target's from taking the commit's bytes."""
        entries = {path: entry for path, entry in self._wanted.items() if isinstance(entry, TensorEntry)}
        return {
            path: self._misfit(path, entries[path], array) for path, array in self._arrays.items() if path in entries
        }

    def _misfit(self, path: str, entry: TensorEntry, array: Array) -> str | None:
        """What keeps the array from taking the entry's elements, or its part of them."""
        if self._owned.is_of_module(path) and _is_frozen(array):
            return f"{path}: the target was made in torch.inference_mode(): check out within that mode"
        whole = self._flat.sharded.get(path)
        if whole is not None and entry.shape != tuple(whole.shape):
            return f"{path}: shape {list(entry.shape)} in the commit, {list(whole.shape)} in the target"
        part = entry if whole is None else replace(entry, shape=tuple(array.shape), order=None)
        if self._is_part(path) or not self._owned.must_fit(path):
            return misfit_of(path, part, array)
        return misfit_with_cast(path, part, array, allow_cast=self._allow_cast)

    def _is_part(self, path: str) -> bool:
        """Whether it is a part of a sparse or quantised tensor of the target."""
        above = self._flat.containers.get(path.rpartition("/")[0])
        return above is not None and above.kind in composites.KINDS

    def _other_forms(self) -> Iterator[str]:
        for path, wanted in self._wanted.items():
            leaf = self._flat.leaves.get(path)
            if leaf is None or not self._owned.must_fit(path) or path.rpartition("/")[0] in self.rebuilt:
                continue
            if path in self._misfits:
                misfit = self._misfits[path]
                if misfit is not None:
                    yield misfit
            elif self._owned.is_free(path):
                continue  # an optimizer's value may have become a tensor
            elif isinstance(leaf, TensorLeaf):
                yield f"{path}: a plain value in the commit, a tensor in the target"
            elif isinstance(wanted, TensorEntry):
                lazy = path in self._owned.uninitialised
                there = f"{self._flat.opaque.get(path, 'a plain value')} in the target"
                own = f"not initialised yet in the target: {CALL_LAZY}" if lazy else there
                yield f"{path}: a tensor in the commit, {own}"

    def _other_composites(self) -> Iterator[str]:
        """A sparse or quantised tensor is filled through its parts, so that what is beside these must be the same."""
        for path, container in self._flat.containers.items():
            other = self._manifest.containers.get(path)
            involved = container.kind in composites.KINDS and self._owned.must_fit(path) and self._owned.touches(path)
            if involved and path not in self.rebuilt and other is not None and other != container:
                yield f"{path}: {_form(other)} in the commit, {_form(container)} in the target"

    def _other_layouts(self) -> Iterator[str]:
        """Tensors that are sparse or quantised on one side, and dense on the other."""
        for path, form in self._composed(self._manifest.containers):
            if isinstance(self._flat.leaves.get(path), TensorLeaf):
                yield f"{path}: {form} in the commit, a dense tensor in the target"
        for path, form in self._composed(self._flat.containers):
            if isinstance(self._manifest.entries.get(path), TensorEntry):
                yield f"{path}: a dense tensor in the commit, {form} in the target"

    def _composed(self, containers: Mapping[str, Container]) -> Iterator[tuple[str, str]]:
        for path, container in containers.items():
            if container.kind in composites.KINDS and not self._owned.is_free(path) and self._owned.selects(path):
                yield path, _form(container)

    def _has_same_form(self, path: str, own: Container) -> bool:
        """Whether the commit has a whole tensor of the same layout, size and dtype there."""
        other = self._manifest.containers.get(path)
        if other is None or other.kind != own.kind:
            return False
        parts = [f"{path}/{key}" for key in own.keys]
        values = f"{path}/{'int_repr' if 'dtype' in own.attributes else 'values'}"
        mine, theirs = self._flat.leaves[values], self._wanted.get(values)
        if not isinstance(mine, TensorLeaf) or not isinstance(theirs, TensorEntry):
            return False
        forms = [(found.attributes.get("size"), found.attributes.get("dtype")) for found in (own, other)]
        sized = "size" in own.attributes or mine.shape == theirs.shape
        return forms[0] == forms[1] and sized and mine.dtype == theirs.dtype and self._wanted.keys() >= set(parts)

    def _fits_in_place(self, path: str, own: Container) -> bool:
        if own != self._manifest.containers[path]:
            return False
        parts = ((f"{path}/{key}", self._flat.leaves[f"{path}/{key}"]) for key in own.keys)
        entries = ((part, leaf, self._wanted[part]) for part, leaf in parts)
        return all(
            isinstance(leaf, TensorLeaf)
            and isinstance(entry, TensorEntry)
            and misfit_of(part, entry, leaf.tensor) is None
            for part, leaf, entry in entries
        )

    @cached_property
    def _tied(self) -> list[list[str]]:
        return tied(self._arrays)

    @cached_property
    def _torn(self) -> dict[str, str]:
        """Path → other path of what is tied in the target and not in the commit."""
        pairs = ((path, group[0]) for group in self._tied for path in group[1:])
        return {path: first for path, first in pairs if _content(self._wanted[path]) != _content(self._wanted[first])}

    def _other_ties(self) -> Iterator[str]:
        for path, first in self._torn.items():
            if not self._owned.is_free(path):
                yield f"{path}: tied to {first} in the target, but another tensor in the commit"

    @cached_property
    def overlapping(self) -> list[tuple[str, str]]:
        """Pairs of targets of which one shows a part of the other's memory."""
        repeated = {path for group in self._tied for path in group[1:]}
        filled = {path: array for path, array in self.targets.items() if array.nbytes and path not in repeated}
        return list(overlaps(filled))

    def _overlaps(self, held: Mapping[str, Array]) -> Iterator[str]:
        for group in together(self.overlapping):
            if held.keys() >= group and agree([self.targets[path] for path in group], [held[path] for path in group]):
                continue
            for path, other in self.overlapping:
                if path in group:
                    yield f"{path}: shares memory with {other} in the target, and may have other bytes in the commit"


def _content(entry: Entry) -> object:
    return (entry.dtype, entry.chunks, entry.inline) if isinstance(entry, TensorEntry) else entry


def _is_frozen(array: Array) -> bool:
    """Whether torch, by whose means modules fill their tensors, refuses to write there now."""
    return isinstance(array, torch.Tensor) and array.is_inference() and not torch.is_inference_mode_enabled()


def _form(container: Container) -> str:
    return f"{container.kind} {dict(container.attributes)}"
