"""Work that is done a few items at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def batched(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in runs of at most `size`; as `itertools.batched` of Python 3.12, of slices."""
    return (items[at : at + size] for at in range(0, len(items), size))
