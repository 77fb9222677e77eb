"""What is costly to make and serves one thread at a time, such as a context of zstd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """As many as were in use at once.

    Args:
        make: makes one more.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []

    @contextmanager
    def borrowed(self) -> Iterator[T]:
        """One that nobody else uses meanwhile."""
        try:
            one = self._free.pop()  # atomic, where looking first would not be
        except IndexError:
            one = self._make()
        try:
            yield one
        finally:
            self._free.append(one)
