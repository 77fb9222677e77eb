"""Copying live arrays, so that training may change them while the copies are written."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ckptstore.format.manifest import Value
from ckptstore.state.tensors import Array, TensorLeaf, as_tracked, clone
from ckptstore.state.tree import Flat


def stage(flat: Flat) -> Flat:
    """The same state with every array copied on its device; what is tied is copied once."""
    repeated = {path: group[0] for group in flat.aliases for path in group[1:]}
    copies: dict[str, TensorLeaf | Value] = {}
    for path, leaf in flat.leaves.items():
        if path in repeated:
            copies[path] = copies[repeated[path]]
        else:
            copies[path] = TensorLeaf(_copy(leaf)) if isinstance(leaf, TensorLeaf) else leaf
    return replace(flat, leaves=copies)


def _copy(leaf: TensorLeaf) -> Array:
    made = clone(leaf.tensor)
    if isinstance(made, Tensor):
        return as_tracked(made, parameter=leaf.parameter, requires_grad=leaf.requires_grad)
    return made
