"""Arrays of a target that show the same memory, whole or in part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ckptstore.state.addresses import byte_range, elements, is_plain_memory, pointer, same_place, share_memory
from ckptstore.state.arrays import Array, as_opaque, is_lazy, mark_changed


def tied(arrays: Mapping[str, Array]) -> list[list[str]]:
    """Groups of several paths that show one memory in the same way."""
    some = {path: array for path, array in arrays.items() if array.nbytes}
    begin = Counter(map(pointer, some.values()))
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for path, array in some.items():
        if begin[pointer(array)] > 1:
            groups[same_place(array)].append(path)
    return [group for group in groups.values() if len(group) > 1]


def overlaps(arrays: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """Pairs of which one shows a part of the other's memory, in the order in which they lie."""
    ranges = sorted((*byte_range(array), path) for path, array in arrays.items() if is_plain_memory(array))
    reaching: list[tuple[int, str]] = []
    for start, end, path in ranges:
        reaching = [(stop, other) for stop, other in reaching if stop > start]
        for _, other in reaching:
            if share_memory(arrays[path], arrays[other]):
                yield path, other
        reaching.append((end, path))


def together(pairs: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Groups of all that overlap each other, or what overlaps those."""
    groups: list[set[str]] = []
    for pair in pairs:
        apart = [group for group in groups if group.isdisjoint(pair)]
        groups = [*apart, set(pair).union(*(group for group in groups if group not in apart))]
    return groups


def agree(arrays: Sequence[Array], values: Sequence[Array]) -> bool:
    """Whether arrays that overlap can hold these values, all at once: tried in other memory."""
    if not all(_is_alike(array, value) for array, value in zip(arrays, values, strict=True)):
        return False
    ranges = [byte_range(array) for array in arrays]
    low = min(start for start, _ in ranges)
    memory = np.empty(max(end for _, end in ranges) - low, np.uint8)
    views = [_placed(array, memory, low) for array in arrays]
    for view, value in zip(views, values, strict=True):
        view[...] = _bits(value)
    return all(np.array_equal(view, _bits(value)) for view, value in zip(views, values, strict=True))


def put(array: Array, value: Array) -> None:
    """Let an array hold a value of its own dtype, bit by bit, as `agree` tried it."""
    mark_changed(array)
    _bits(array)[...] = _bits(value)


def _is_alike(array: Array, value: Array) -> bool:
    is_as_it_lies = not isinstance(array, torch.Tensor) or not is_lazy(array)
    return is_as_it_lies and array.dtype == value.dtype


def _placed(array: Array, memory: np.ndarray[Any, Any], low: int) -> np.ndarray[Any, Any]:
    """The memory, in which the byte of the address `low` is the first, as the array shows it."""
    seen = _bits(array)
    return np.ndarray(seen.shape, seen.dtype, memory, pointer(array) - low, seen.strides)


def _bits(array: Array) -> np.ndarray[Any, Any]:
    return elements(array) if isinstance(array, torch.Tensor) else as_opaque(array)
