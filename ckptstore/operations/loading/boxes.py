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
from ckptstore.format.selection import select_box
from ckptstore.operations.loading.load import Filling, fill
from ckptstore.state.addresses import missing_memory
from ckptstore.state.casts import misfit_with_cast


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
    fill(chunks, [_filling(box, allow_cast=allow_cast) for box in boxes], budget=budget)


def _filling(box: Box, *, allow_cast: bool) -> Filling:
    stop = tuple(map(sum, zip(box.start, box.lengths, strict=True)))
    part = replace(box.entry, shape=box.lengths, order=None)
    if missing := missing_memory(box.target):
        raise StateError(f"{box.label}: the target is {': '.join(missing)}")
    misfit = misfit_with_cast(box.label, part, box.target, allow_cast=allow_cast)
    if misfit is not None:
        raise StateError(f"{misfit}; make them alike")
    return Filling(box.entry, box.target, select_box(box.start, stop), box.label)
