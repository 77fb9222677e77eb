"""Host memory that is kept from one commit to the next, and what is known of its content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ckptstore.errands import uninterrupted
from ckptstore.locks import Lock
from ckptstore.pools import Pool

T = TypeVar("T")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_WORKERS = min(8, os.cpu_count() or 1)
_SEGMENT = 8 << 20
_SLAB = 32 << 20
_OWN_SLAB = 4 << 20
_ALIGN = 512
"""So that storage can take it as it lies: see `format.packs`."""
_PAGE = 4096


@dataclass(slots=True, eq=False)
class Kept:
    """The memory of one leaf.

    Attributes:
        content: as many bytes as the leaf has.
        fingerprint: of what is in it; None when that is not known.
        steady: whether the leaf did not change last time, as far as is known.
        faulted: whether the pages are there.
    """

    content: Bytes
    fingerprint: bytes | None = None
    steady: bool = True
    faulted: bool = False

    def fault(self) -> None:
        """Bring the pages in, so that whoever writes next need not wait for them. Destroys the content."""
        if not self.faulted:
            fault(self.content)
            self.faulted = True


def fault(content: Bytes) -> None:
    """Bring in the pages that begin within, where it begins with one. Destroys the content."""
    content[::_PAGE] = 0


class KeptBuffers:
    """Memory by logical path, used again while the leaf keeps its size, and the threads that fill it.

    Small leaves share slabs, so that the system backs all of them with huge pages, which are written 5 times as fast.
    """

    def __init__(self) -> None:
        self._held: dict[str, Kept] = {}
        self._free: Bytes = np.empty(0, np.uint8)
        self._lock = Lock()
        self._pool = Pool(_WORKERS, "ckptstore-copy")

    def close(self) -> None:
        """Give everything back."""
        self._pool.shutdown()
        self._held.clear()
        self._free = np.empty(0, np.uint8)

    def take(self, path: str, size: int) -> Kept:
        """The memory of a leaf, which holds what it held last time when it is as large."""
        with self._lock:
            held = self._held.get(path)
            if held is None or held.content.nbytes != size:
                self._held[path] = held = Kept(self._cut(size))
            return held

    def forget_all_but(self, paths: Iterable[str]) -> None:
        """Free the memory of all other leaves."""
        wanted = set(paths)
        with self._lock:
            self._held = {path: held for path, held in self._held.items() if path in wanted}

    def copy(self, pairs: Sequence[tuple[Bytes, Bytes]]) -> None:
        """Copy each source to its target; threads share large ones."""
        cuts = (
            (target[at : at + _SEGMENT], source[at : at + _SEGMENT])
            for source, target in pairs
            for at in range(0, len(source), _SEGMENT)
        )
        self.spread(lambda cut: np.copyto(*cut), list(cuts))

    def fingerprints(self, compute: Callable[[memoryview], bytes], arrays: Sequence[Bytes]) -> list[bytes]:
        """What `compute` gives for the segments of each, joined; threads share large ones."""
        counts = [-(-len(array) // _SEGMENT) for array in arrays]
        cuts = [array[at : at + _SEGMENT].data for array in arrays for at in range(0, len(array), _SEGMENT)]
        found = iter(self.spread(compute, cuts))
        return [b"".join(next(found) for _ in range(count)) for count in counts]

    def spread(self, work: Callable[[Any], T], jobs: Sequence[Any]) -> list[T]:
        """`work` on every job, in order. Each thread does one share: handing over costs more than a small job does.

        Nothing is at work any more when this is interrupted.
        """
        return uninterrupted(lambda: self._shared(work, jobs), lambda: None) if jobs else []

    def _shared(self, work: Callable[[Any], T], jobs: Sequence[Any]) -> list[T]:
        shares = [self._pool.submit(_all, work, jobs[first::_WORKERS]) for first in range(_WORKERS)]
        wait(shares)
        done: list[Any] = [None] * len(jobs)
        for first, share in enumerate(shares):
            done[first::_WORKERS] = share.result()
        return done

    def _cut(self, size: int) -> Bytes:
        if size >= _OWN_SLAB:
            return _aligned(size)
        if size > len(self._free):
            self._free = _aligned(_SLAB)
        cut, self._free = self._free[:size], self._free[size + -size % _ALIGN :]
        return cut


def _all(work: Callable[[Any], T], jobs: Sequence[Any]) -> list[T]:
    return [work(job) for job in jobs]


def _aligned(size: int) -> Bytes:
    memory = np.empty(size + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + size]
