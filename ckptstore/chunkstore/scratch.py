"""Memory that one batch of chunks after another is read into: fresh memory costs more than decoding what is in it.

It is numpy's, which asks the system for huge pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not needed by who opens a store and reads nothing
    import numpy as np
    import numpy.typing as npt


class Scratch:
    """As many buffers as were in use at once, each as large as what was most in it."""

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []

    @contextmanager
    def lent(self, size: int) -> Iterator[Callable[[int], memoryview]]:
        """What gives out parts of `size` bytes, which nobody else uses until the context ends."""
        import numpy as np

        try:
            buffer = self._free.pop()  # atomic, where looking first would not be
        except IndexError:
            buffer = np.empty(size, np.uint8)
        if len(buffer) < size:
            buffer = np.empty(size, np.uint8)
        end = 0

        def take(count: int) -> memoryview:
            nonlocal end
            end += count
            return buffer[end - count : end].data

        try:
            yield take
        finally:
            self._free.append(buffer)
