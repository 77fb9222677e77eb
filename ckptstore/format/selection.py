"""Which elements of an array are wanted: basic indexing as in numpy, one arithmetic progression a dim."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, SupportsIndex

from ckptstore.cached import cached_property
from ckptstore.errors import InvalidArgument
from ckptstore.format.grid import Grid, Index

_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Part:
    """What one chunk gives to a selection.

    Attributes:
        number: the chunk.
        source: slices of the chunk that are wanted.
        start, stop: the box of the result that they fill.
        whole: whether that is the whole chunk, in order.
    """

    number: int
    source: tuple[slice, ...]
    start: Index
    stop: Index
    whole: bool


@dataclass(frozen=True)
class Selection:
    """Elements of an array: a range a dim; `dropped` dims were picked by an int and vanish from the result."""

    ranges: tuple[range, ...]
    dropped: frozenset[int]

    @cached_property
    def full_shape(self) -> Index:
        """Shape of the result with the dropped dims kept, of extent 1."""
        return tuple(len(chosen) for chosen in self.ranges)

    def parts(self, grid: Grid) -> Iterator[Part]:
        """Every chunk of the grid that holds wanted elements, ascending."""
        if not all(self.ranges):
            return
        first = tuple(chosen[0] for chosen in self.ranges)
        past = tuple(chosen[-1] + 1 for chosen in self.ranges)
        for number in grid.touching(first, past):
            start, stop = grid.box(number)
            part = self._part(number, start, stop)
            if part is not None:
                yield part

    def _part(self, number: int, start: Index, stop: Index) -> Part | None:
        source, low, high, whole = [], [], [], True
        for chosen, begin, end in zip(self.ranges, start, stop, strict=True):
            before = max(0, -(-(begin - chosen.start) // chosen.step))
            after = min(len(chosen), -(-(end - chosen.start) // chosen.step))
            if before >= after:
                return None
            source.append(slice(chosen[before] - begin, chosen[after - 1] - begin + 1, chosen.step))
            low.append(before)
            high.append(after)
            whole = whole and after - before == end - begin
        return Part(number, tuple(source), tuple(low), tuple(high), whole)


@lru_cache(1024)  # as of grids: of many leaves, few have a form of their own
def everything(shape: Index) -> Selection:
    """The whole array."""
    return Selection(tuple(range(extent) for extent in shape), frozenset())


def select_box(start: Index, stop: Index) -> Selection:
    """The box between two corners."""
    return Selection(tuple(map(range, start, stop)), frozenset())


def select(shape: Index, index: Any) -> Selection:
    """The selection that `index` means on an array of `shape`: ints, slices with positive steps, `...`, or a tuple.

    Raises:
        InvalidArgument: another kind of index, too many of them, or an int out of range.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    dots = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1 or len(items) - len(dots) > len(shape):
        raise InvalidArgument(
            f"index {_shown(index)} has more entries than the {len(shape)} dims of shape {list(shape)}"
        )
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * (len(shape) - len(items) + len(dots))
    ranges, dropped = [], set()
    for dim, (item, extent) in enumerate(zip(items, shape, strict=True)):
        if isinstance(item, slice):
            ranges.append(_sliced(item, extent))
        else:
            ranges.append(_picked(item, extent, dim))
            dropped.add(dim)
    return Selection(tuple(ranges), frozenset(dropped))


def contiguous_span(shape: Index, start: Index, stop: Index) -> tuple[int, int] | None:
    """First element and count of a box in a row-major array, when the box is contiguous there."""
    offset, count, open_ended = 0, 1, False
    for extent, begin, end in zip(shape, start, stop, strict=True):
        offset = offset * extent + begin
        if open_ended and end - begin != extent:
            return None
        open_ended = open_ended or end - begin > 1
        count *= end - begin
    return offset, count


def contiguous_spans(shape: Index, start: Index, stop: Index) -> Iterator[tuple[int, int]]:
    """First element and count of what lies together in a row-major array, of a box, in order."""
    span = contiguous_span(shape, start, stop)
    if span is not None:
        yield span
        return
    dim = next(dim for dim, (low, high) in enumerate(zip(start, stop, strict=True)) if high - low > 1)
    for at in range(start[dim], stop[dim]):
        low, high = (*start[:dim], at, *start[dim + 1 :]), (*stop[:dim], at + 1, *stop[dim + 1 :])
        yield from contiguous_spans(shape, low, high)


def _sliced(item: slice, extent: int) -> range:
    try:
        chosen = range(extent)[item]
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"slice {item!r}: {error}") from None
    if chosen.step < 0:
        raise InvalidArgument(f"slice {item!r} runs backwards: use a positive step and flip the result")
    return chosen


def _picked(item: object, extent: int, dim: int) -> range:
    number = _number(item)
    if number is None:
        advice = "use ints, slices and `...`; what a mask or a list selects, take from what was read"
        raise InvalidArgument(f"index {_shown(item)} is a {type(item).__name__}: {advice}")
    if not -extent <= number < extent:
        raise InvalidArgument(f"index {number} is out of range for dim {dim} of extent {extent}")
    return range(number % extent, number % extent + 1)


def _shown(index: object) -> str:
    """An index as text that is short, whatever it is."""
    if isinstance(index, tuple):
        return f"({', '.join(map(_shown, index[:_MOST_SHOWN]))}{', …' * (len(index) > _MOST_SHOWN)})"
    if hasattr(index, "shape") and hasattr(index, "dtype") and index.shape != ():
        return f"of shape {list(index.shape)} and dtype {index.dtype}"
    return repr(index) if isinstance(index, slice) else reprlib.repr(index)


def _number(item: object) -> int | None:
    """The int that `item` is; None for anything else, also for the bools and 0-d arrays that only look like one."""
    a_bool = isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool")
    if a_bool or not isinstance(item, SupportsIndex) or getattr(item, "shape", ()) != ():
        return None
    try:
        return operator.index(item)
    except TypeError:
        return None
