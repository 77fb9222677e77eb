"""Storages that fail, wait or count: wrap one around the storage under test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from ckptstore.errors import StorageError
from ckptstore.format.buffers import Buffer
from ckptstore.storage.base import RangeRead, Storage
from ckptstore.storage.wrappers import Intercepted

T = TypeVar("T")

MUTATING = frozenset({"put", "delete"})
VERBS = MUTATING | {"get", "get_ranges", "head", "list"}


class Meanwhile(Intercepted):
    """Lets something happen just before the first operation of a verb."""

    def __init__(self, storage: Storage, verb: str, act: Callable[[], object]) -> None:
        super().__init__(storage)
        self._verb = verb
        self._act: Callable[[], object] | None = act

    @property
    def happened(self) -> bool:
        """Whether it did."""
        return self._act is None

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Run it, behind what is to happen."""
        if verb == self._verb and self._act is not None:
            act, self._act = self._act, None
            act()
        return operation()


class FailNth(Intercepted):
    """Fails one operation, once.

    Args:
        storage: the storage under test.
        n: which operation fails, the first being 1.
        error: what it raises; a StorageError when left out.
        after: fail only after the operation took effect, as when an answer is lost on its way.
        verbs: which operations count; all when left out, `MUTATING` for those that change something.

    Attributes:
        seen: how many operations counted so far; `failed` says whether the nth was among them.
    """

    def __init__(
        self,
        storage: Storage,
        n: int,
        error: BaseException | None = None,
        *,
        after: bool = False,
        verbs: frozenset[str] = VERBS,
    ) -> None:
        super().__init__(storage)
        self._n, self._error, self._after, self._verbs = n, error, after, verbs
        self._lock = threading.Lock()
        self.seen = 0

    @property
    def failed(self) -> bool:
        """Whether the failure has come."""
        return self.seen >= self._n

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Run it, or fail before or after."""
        if not self._is_nth(verb):
            return operation()
        if self._after:
            operation()
        raise self._error or StorageError(f"injected: {verb} {key!r} failed, operation {self._n}")

    def _is_nth(self, verb: str) -> bool:
        if verb not in self._verbs:
            return False
        with self._lock:
            self.seen += 1
            return self.seen == self._n


class Latency(Intercepted):
    """Waits `seconds` before every operation, as a storage far away does."""

    def __init__(self, storage: Storage, seconds: float) -> None:
        super().__init__(storage)
        self._seconds = seconds

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Wait, then run it."""
        time.sleep(self._seconds)
        return operation()


class Recording(Intercepted):
    """Counts what is asked of a storage.

    Attributes:
        operations: how often each verb was called, failed calls too.
        written, read: bytes stored by `put`, and delivered by `get` and `get_ranges`.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._lock = threading.Lock()
        self.operations: Counter[str] = Counter()
        self.written = 0
        self.read = 0

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Count it, then run it."""
        with self._lock:
            self.operations[verb] += 1
        return operation()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`."""
        super().put(key, parts)
        self._add(written=sum(memoryview(part).nbytes for part in parts))

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        found = super().get(key)
        self._add(read=len(found))
        return found

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`."""
        super().get_ranges(key, reads)
        self._add(read=sum(len(read.out) for read in reads))

    def _add(self, *, written: int = 0, read: int = 0) -> None:
        with self._lock:
            self.written += written
            self.read += read
