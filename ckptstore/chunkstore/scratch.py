"""Memory that one batch of chunks after another is read into: fresh memory costs more than decoding what is in it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Memory = memoryview | mmap.mmap


class Scratch:
    """As many buffers as were in use at once, each as large as what was most in it.

    Args:
        fresh: makes one of at least a size, where memory of the usual kind does not do.
        settle: called before one is used again; returns once nobody looks at it any more.
    """

    def __init__(
        self, fresh: Callable[[int], Memory] | None = None, settle: Callable[[], object] = lambda: None
    ) -> None:
        self._fresh, self._settle = fresh or _fresh, settle
        self._free: list[Memory] = []

    @contextmanager
    def lent(self, size: int) -> Iterator[Callable[[int], memoryview]]:
        """What gives out parts of `size` bytes, which nobody else uses until the context ends."""
        try:
            buffer = self._free.pop()  # atomic, where looking first would not be
        except IndexError:
            buffer = self._fresh(size)
        if len(buffer) < size:
            buffer = self._fresh(size)
        end = 0

        def take(count: int) -> memoryview:
            nonlocal end
            end += count
            return memoryview(buffer)[end - count : end]

        try:
            yield take
        finally:
            self._settle()
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
