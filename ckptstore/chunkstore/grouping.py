"""Cutting a stream of work into groups of bounded size, waiting for work in threads, and ending it early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

Advance = Callable[[int], None]
"""Gets how many raw bytes were just dealt with, or 0; may be called from any thread, and may raise, which ends all."""


def ignore(_: int) -> None:
    """An `Advance` that nobody watches."""


class _GivenUp(Exception):
    """Ends work of which nobody wants to know any more."""


class Stopping:
    """Lets work end early that calls an `Advance`."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let it fail as soon as it has done a little more."""
        self._stopped.set()

    def watched(self, advance: Advance) -> Advance:
        """What it is to call in place of `advance`."""

        def go_on(count: int) -> None:
            if self._stopped.is_set():
                raise _GivenUp
            advance(count)

        return go_on


def groups(items: Iterable[T], size_of: Callable[[T], int], most_bytes: int, most_items: int) -> Iterator[list[T]]:
    """Consecutive groups; each ends as soon as it reaches `most_bytes` or `most_items`."""
    group: list[T] = []
    size = 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= most_bytes or len(group) >= most_items:
            yield group
            group, size = [], 0
    if group:
        yield group


def wait_all(futures: Sequence[Future[Any]]) -> None:
    """Wait until all have ended; then raise the first error there was."""
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
