"""Storages around a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ckptstore.errors import StorageError, StorageReadOnly, StorageUnavailable
from ckptstore.format.buffers import Buffer
from ckptstore.patience import patiently
from ckptstore.storage.base import Closing, ObjectInfo, RangeRead, Storage, Sweeping

T = TypeVar("T")


class Intercepted:
    """A storage each of whose operations goes through `intercept`; this one only passes them on.

    An operation is known by its verb and its key (`list`: its prefix), and is over when its verb returns; `list` is
    read whole, so that what it finds is found in time.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage!r})"

    @property
    def url(self) -> str:
        """Where the wrapped storage is."""
        return self.storage.url

    @property
    def copies(self) -> int:
        """As the wrapped storage."""
        return self.storage.copies

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Run the operation; to be overridden."""
        return operation()

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`."""
        self.intercept("put", key, lambda: self.storage.put(key, parts))

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        return self.intercept("get", key, lambda: self.storage.get(key))

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`."""
        self.intercept("get_ranges", key, lambda: self.storage.get_ranges(key, reads))

    def head(self, key: str) -> ObjectInfo:
        """See `Storage.head`."""
        return self.intercept("head", key, lambda: self.storage.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Storage.list`."""
        return iter(self.intercept("list", prefix, lambda: tuple(self.storage.list(prefix))))

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        self.intercept("delete", key, lambda: self.storage.delete(key))

    def close(self) -> None:
        """See `Closing.close`."""
        if isinstance(self.storage, Closing):
            self.storage.close()


class ReadOnly(Intercepted):
    """Reads pass; `put` and `delete` raise StorageReadOnly, saying the `refusal`."""

    def __init__(self, storage: Storage, refusal: str) -> None:
        super().__init__(storage)
        self.refusal = refusal

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Raises StorageReadOnly."""
        raise StorageReadOnly(f"{key} is not stored: {self.refusal}")

    def delete(self, key: str) -> None:
        """Raises StorageReadOnly."""
        raise StorageReadOnly(f"{key} is not deleted: {self.refusal}")


class Retrying(Intercepted):
    """Tries again what raises StorageUnavailable, and nothing else; see `patiently`.

    A listing that breaks off begins anew, so it is complete before it is shown.
    """

    def __init__(self, storage: Storage, patience: float | None = None) -> None:
        super().__init__(storage)
        self._patience = patience

    def intercept(self, verb: str, key: str, operation: Callable[[], T]) -> T:
        """Run it until it succeeds, fails for good, or patience ends."""
        return patiently(operation, StorageUnavailable, self._patience)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`. A key that holds these very bytes after a failure counts as stored: the reply was lost."""
        self.intercept("put", key, lambda: self._put(key, parts))

    def sweep_temporary(self, prefix: str, older_than_seconds: float) -> int:
        """See `Sweeping.sweep_temporary`."""
        if not isinstance(self.storage, Sweeping):
            return 0
        sweep = self.storage.sweep_temporary
        return self.intercept("sweep", prefix, lambda: sweep(prefix, older_than_seconds))

    def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        try:
            self.storage.put(key, parts)
        except StorageUnavailable:
            raise
        except StorageError:
            if not self._holds(key, b"".join(parts)):
                raise

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.storage.head(key).size == len(data) and self.storage.get(key) == data
        except StorageUnavailable:
            raise
        except StorageError:
            return False
