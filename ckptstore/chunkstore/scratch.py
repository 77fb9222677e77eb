"""Memory that one batch of chunks after another is read into: fresh memory costs more than decoding what is in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Scratch:
    """As many buffers as were in use at once, each as large as what was most in it."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    @contextmanager
    def lent(self, size: int) -> Iterator[Callable[[int], memoryview]]:
        """What gives out parts of `size` bytes, which nobody else uses until the context ends."""
        try:
            buffer = self._free.pop()  # atomic, where looking first would not be
        except IndexError:
            buffer = _fresh(size)
        if len(buffer) < size:
            buffer = _fresh(size)
        end = 0

        def take(count: int) -> memoryview:
            nonlocal end
            end += count
            return memoryview(buffer)[end - count : end]

        try:
            yield take
        finally:
            self._free.append(buffer)


def _fresh(size: int) -> mmap.mmap:
    """In huge pages, where the system has them: it takes their time once, and not for every 4 KiB.

    A power of two, since the next batch is often a little larger: what nobody writes to takes no memory.
    """
    memory = mmap.mmap(-1, 1 << max(size - 1, 0).bit_length(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
