"""The same for each of many, a few at a time: most of it is waiting for storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from ckptstore.batching import batched
from ckptstore.errands import uninterrupted
from ckptstore.pools import Pool

_WORKERS = 8
BATCH = 64
"""So many of what is read fit into memory."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def each(items: Sequence[Item], act: Callable[[Item], Found]) -> Iterator[Found]:
    """Results in order."""
    with Pool(_WORKERS) as pool:
        for batch in batched(items, BATCH):
            yield from mapped(pool, act, batch)


def mapped(pool: Pool, act: Callable[[Item], Found], items: Sequence[Item]) -> Iterator[Found]:
    """`pool.map`. When this is interrupted, nothing more is begun, and no lock is left taken that the threads need."""
    give_up = partial(pool.shutdown, wait=False, cancel_futures=True)
    found = uninterrupted(lambda: pool.map(act, items), give_up)
    for _ in items:
        yield uninterrupted(lambda: next(found), give_up)
