"""Batches dealt to threads so that each reads on where it was: the kernel reads ahead of one stream, not of a crowd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

_SHARE = 2
"""Of its share of what is left, a thread takes one part in so many: some batches take longer than others."""


class Stretches(Generic[T]):
    """Iterated by `threads` threads at once, of which each gets other batches; their order is kept within a stretch.

    Stretches are long at first, and single batches at last, so that all threads end together: guided self-scheduling
    (Polychronopoulos and Kuck, 1987).
    """

    def __init__(self, batches: Sequence[T], threads: int) -> None:
        self._rest = iter(list(_cut(batches, _SHARE * threads)))  # a list's, whose steps are atomic
        self._given_up = False

    def __iter__(self) -> Iterator[T]:
        for stretch in self._rest:
            for batch in stretch:
                if self._given_up:
                    return
                yield batch

    def give_up(self) -> None:
        """Where one thread failed, or is interrupted, nobody begins anything more."""
        self._given_up = True


def _cut(batches: Sequence[T], parts: int) -> Iterator[Sequence[T]]:
    start = 0
    while start < len(batches):
        count = max(1, (len(batches) - start) // parts)
        yield batches[start : start + count]
        start += count
