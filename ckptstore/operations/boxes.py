"""Boxes of a commit's tensors into live tensors, whatever boxes those had who saved it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import StateError
from ckptstore.format.grid import Index
from ckptstore.format.manifest import TensorEntry
from ckptstore.format.selection import Selection
from ckptstore.operations.load import Filling, fill
from ckptstore.state.tensors import allocate, check_fits


class Box(NamedTuple):
    """The elements of an entry from `start` on, `lengths` a dim, and the tensor that takes them; `label` names it."""

    entry: TensorEntry
    start: Index
    lengths: Index
    target: torch.Tensor
    label: str


def fill_boxes(chunks: ChunkStore, boxes: Sequence[Box], *, allow_cast: bool, budget: int | None) -> None:
    """Fill every target; with `allow_cast`, also those of other dtypes.

    Raises StateError when one does not fit; nothing was written then.
    """
    jobs = [_filling(box, allow_cast=allow_cast) for box in boxes]
    fill(chunks, jobs, budget=budget)
    for box, job in zip(boxes, jobs, strict=True):
        if job.target is not box.target:
            box.target.detach().copy_(torch.as_tensor(job.target))


def _filling(box: Box, *, allow_cast: bool) -> Filling:
    """Into the target, or into a tensor of the entry's dtype that is cast then."""
    ranges = tuple(range(at, at + length) for at, length in zip(box.start, box.lengths, strict=True))
    selection = Selection(ranges, frozenset())
    part = replace(box.entry, shape=box.lengths, order=None)
    misfit = check_fits(box.label, part, box.target)
    if misfit is None:
        return Filling(box.entry, box.target, selection, box.label)
    if not allow_cast or tuple(box.target.shape) != box.lengths:
        raise StateError(f"{misfit}: make them alike, or pass allow_cast=True for other dtypes")
    return Filling(box.entry, allocate(part), selection, box.label)
