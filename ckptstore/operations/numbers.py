"""How far the values of changed tensors moved, computed in float64 over chunks that are read in groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import frexp, inf, nan, prod, sqrt

import msgspec
import numpy as np
import torch
from torch import Tensor

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import groups
from ckptstore.chunkstore.needs import granted, share
from ckptstore.format.grid import Grid, Index, extents
from ckptstore.format.manifest import TensorEntry
from ckptstore.format.selection import select_box
from ckptstore.operations.diff import Change, Diff, Numbers
from ckptstore.operations.loading.load import Filling, fill
from ckptstore.progress import ProgressCallback, meter
from ckptstore.state.arrays import Array
from ckptstore.state.dtypes import known_numpy_dtype, known_torch_dtype
from ckptstore.state.new_arrays import allocate

_SLICE = 1 << 16
"""Elements that are turned into float64 at a time."""

_MOST_BOXES = 1024
_SMALLEST = -1000
_HARMLESS = 400
"""Powers of two: of the smallest unit that sums are taken in, and up to which, or down to, the unit may be 1."""
_LEAST = 2.0 ** (-2 * _HARMLESS)


def with_numbers(chunks: ChunkStore, diff: Diff, budget: int | None, progress: ProgressCallback | None) -> Diff:
    """The diff with the numbers of every changed tensor that has one shape and numeric dtypes in both commits.

    A quarter of the budget holds what is compared, or a chunk of each commit if that is more; the rest is for reading.

    Raises:
        BudgetTooSmall: `budget` bytes do not hold a chunk of the old and one of the new commit twice, or these and what
            one of them needs to be read.
        CorruptData: what is read is damaged.
    """
    sums = {place: _Sums() for place, change in enumerate(diff.changes) if _is_numeric(change)}
    boxes = [box for place in sums for box in _boxes(place, diff.changes[place])]
    largest = max((box.nbytes for box in boxes), default=0)
    granted(budget, 2 * largest, "comparing two chunks")
    held = share(budget, largest)
    advance = meter(progress, "diff", sum(box.nbytes for box in boxes))
    for group in groups(boxes, lambda box: box.nbytes, max(held - largest, 1), _MOST_BOXES):
        for box, old, new in _load(chunks, group, budget, held):
            sums[box.place].add(old, new)
            advance(box.nbytes)
    changes = [
        replace(change, numbers=sums[place].numbers()) if place in sums else change
        for place, change in enumerate(diff.changes)
    ]
    return replace(diff, changes=tuple(changes))


@dataclass(frozen=True, slots=True)
class _Box:
    """The same elements of a changed tensor, before and after."""

    place: int
    path: str
    old: TensorEntry
    new: TensorEntry
    start: Index
    stop: Index

    @property
    def shape(self) -> Index:
        return extents(self.start, self.stop)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * (self.old.itemsize + self.new.itemsize)


@dataclass(slots=True)
class _Squares:
    """The sum of the squares of values in units of a power of two: squares leave float64 sooner than values."""

    exponent: int = _SMALLEST
    total: float = 0.0

    def add(self, values: Tensor) -> tuple[Tensor, int]:
        """The values in these units, and by what power of two the unit grew for them."""
        squared = _squared(values)
        grown = max((0 if _LEAST < squared < inf else _exponent(values)) - self.exponent, 0)
        self.exponent += grown
        if self.exponent:
            values = values * 2.0**-self.exponent
            squared = _squared(values)
        self.total = _times(self.total, -2 * grown) + squared
        return values, grown


@dataclass(slots=True)
class _Sums:
    """What the numbers are made of."""

    count: int = 0
    largest: float = 0.0
    distance: float = 0.0
    product: float = 0.0
    old: _Squares = field(default_factory=_Squares)
    new: _Squares = field(default_factory=_Squares)
    moved: _Squares = field(default_factory=_Squares)

    def add(self, old: Array, new: Array) -> None:
        before, after = old.reshape(-1), new.reshape(-1)
        for at in range(0, len(before), _SLICE):
            self._add(_wide(before[at : at + _SLICE]), _wide(after[at : at + _SLICE]))

    def _add(self, old: Tensor, new: Tensor) -> None:
        if old.dtype != new.dtype:
            old, new = old.to(torch.complex128), new.to(torch.complex128)
        distance = (new - old).abs()
        self.count += len(old)
        self.largest = float(torch.maximum(distance.max(), distance.new_tensor(self.largest)))
        distance, grown = self.moved.add(distance)
        self.distance = _times(self.distance, -grown) + float(distance.sum())
        (old, one), (new, other) = self.old.add(old), self.new.add(new)
        self.product = _times(self.product, -one - other) + float(torch.vdot(old, new).real)

    def numbers(self) -> Numbers | None:
        if not self.count:
            return None
        lengths = sqrt(self.old.total) * sqrt(self.new.total)
        moved = _ratio(sqrt(self.moved.total), sqrt(self.old.total))
        return Numbers(
            max_abs=self.largest,
            mean_abs=_times(self.distance / self.count, self.moved.exponent),
            relative_l2=_times(moved, self.moved.exponent - self.old.exponent),
            cosine=self.product / lengths if lengths else nan,
        )


def _squared(values: Tensor) -> float:
    return float(torch.vdot(values, values).real)


def _exponent(values: Tensor) -> int:
    """That of the unit for the values: 0 unless the square of the largest would come near the ends of float64."""
    largest = float(values.abs().max())
    found = frexp(largest)[1] if largest else _SMALLEST
    return max(found, _SMALLEST) if abs(found) > _HARMLESS else 0


def _times(value: float, exponent: int) -> float:
    """The value times a power of two, infinite where it is too large."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(value, exponent))


def _is_numeric(change: Change) -> bool:
    old, new = change.old, change.new
    if change.kind != "changed" or not isinstance(old, TensorEntry) or not isinstance(new, TensorEntry):
        return False
    return old.shape == new.shape and _has_numbers(old.library, old.dtype) and _has_numbers(new.library, new.dtype)


@lru_cache
def _has_numbers(library: str, dtype: str) -> bool:
    if library == "numpy":
        array = known_numpy_dtype(dtype)
        return array is not None and array.kind in "biufc"
    tensor = known_torch_dtype(dtype)
    if tensor is None:
        return False
    try:
        _wide(torch.zeros(1, dtype=tensor, device="cpu"))
    except (RuntimeError, NotImplementedError):  # dtypes of less than a byte are no numbers to torch
        return False
    return True


def _boxes(place: int, change: Change) -> Iterator[_Box]:
    """The chunks of the new tensor."""
    assert isinstance(change.old, TensorEntry)
    assert isinstance(change.new, TensorEntry)
    grid = Grid(change.new.shape, change.new.chunk_shape)
    for number in range(len(grid)):
        yield _Box(place, change.path, change.old, change.new, *grid.box(number))


def _load(chunks: ChunkStore, group: list[_Box], budget: int | None, held: int) -> Iterator[tuple[_Box, Array, Array]]:
    jobs = [_filling(box, entry) for box in group for entry in (box.old, box.new)]
    fill(chunks, jobs, budget=budget, beside=held)
    for box, old, new in zip(group, jobs[::2], jobs[1::2], strict=True):
        yield box, old.target, new.target


def _filling(box: _Box, entry: TensorEntry) -> Filling:
    array = allocate(box.path, msgspec.structs.replace(entry, shape=box.shape, order=None))
    selection = select_box(box.start, box.stop)
    return Filling(entry, array, selection, box.path)


def _wide(array: Array) -> Tensor:
    """As float64, or complex128."""
    if isinstance(array, Tensor):
        return array.to(torch.complex128 if array.is_complex() else torch.float64)
    return torch.from_numpy(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))


def _ratio(over: float, under: float) -> float:
    if under:
        return over / under
    return inf if over else 0.0
