"""The same for each of many, a few at a time: most of it is waiting for storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_WORKERS = 8
_BATCH = 64

Item = TypeVar("Item")
Found = TypeVar("Found")


def each(items: Sequence[Item], act: Callable[[Item], Found]) -> Iterator[Found]:
    """Results in order."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        for batch in batched(items):
            yield from pool.map(act, batch)


def batched(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in parts, of which what is read fits into memory."""
    return (items[at : at + _BATCH] for at in range(0, len(items), _BATCH))
