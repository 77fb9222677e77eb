"""Arrays of a target that show the same memory, whole or in part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping

from ckptstore.state.addresses import byte_range, is_plain_memory, pointer, same_place, share_memory
from ckptstore.state.arrays import Array


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
