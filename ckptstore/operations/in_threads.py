"""The same for each of many, a few at a time: most of it is waiting for storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ckptstore.batching import batched

_WORKERS = 8
BATCH = 64
"""So many of what is read fit into memory."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def each(items: Sequence[Item], act: Callable[[Item], Found]) -> Iterator[Found]:
    """Results in order."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        for batch in batched(items, BATCH):
            yield from pool.map(act, batch)
