"""Storages around a storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ckptstore.errors import StorageError, StorageReadOnly, StorageUnavailable
from ckptstore.patience import patiently
from ckptstore.storage.base import Buffer, ObjectInfo, RangeRead, Storage, Sweeping

T = TypeVar("T")


class ReadOnly:
    """Reads pass; `put` and `delete` raise StorageReadOnly, telling the `refusal`."""

    def __init__(self, storage: Storage, refusal: str) -> None:
        self._storage, self.refusal = storage, refusal

    def __repr__(self) -> str:
        return f"ReadOnly({self._storage!r})"

    @property
    def url(self) -> str:
        """Where the wrapped storage is."""
        return self._storage.url

    @property
    def copies(self) -> int:
        """As the wrapped storage."""
        return self._storage.copies

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Raises StorageReadOnly."""
        raise StorageReadOnly(f"{key} is not stored: {self.refusal}")

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        return self._storage.get(key)

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`."""
        self._storage.get_ranges(key, reads)

    def head(self, key: str) -> ObjectInfo:
        """See `Storage.head`."""
        return self._storage.head(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Storage.list`."""
        return self._storage.list(prefix)

    def delete(self, key: str) -> None:
        """Raises StorageReadOnly."""
        raise StorageReadOnly(f"{key} is not deleted: {self.refusal}")


class Retrying:
    """Tries again what raises StorageUnavailable, and nothing else; see `patiently`."""

    def __init__(self, storage: Storage, patience: float | None = None) -> None:
        self._storage, self._patience = storage, patience

    def __repr__(self) -> str:
        return f"Retrying({self._storage!r})"

    @property
    def url(self) -> str:
        """Where the wrapped storage is."""
        return self._storage.url

    @property
    def copies(self) -> int:
        """As the wrapped storage."""
        return self._storage.copies

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`. A key that holds these very bytes after a failure counts as stored: the reply was lost."""
        self._patiently(lambda: self._put(key, parts))

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        return self._patiently(lambda: self._storage.get(key))

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`."""
        self._patiently(lambda: self._storage.get_ranges(key, reads))

    def head(self, key: str) -> ObjectInfo:
        """See `Storage.head`."""
        return self._patiently(lambda: self._storage.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Storage.list`. A listing that breaks off begins anew, so it is complete before it is shown."""
        return iter(self._patiently(lambda: tuple(self._storage.list(prefix))))

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        self._patiently(lambda: self._storage.delete(key))

    def sweep_temporary(self, older_than_seconds: float) -> int:
        """See `Sweeping.sweep_temporary`."""
        if not isinstance(self._storage, Sweeping):
            return 0
        sweep = self._storage.sweep_temporary
        return self._patiently(lambda: sweep(older_than_seconds))

    def _put(self, key: str, parts: Sequence[Buffer]) -> None:
        try:
            self._storage.put(key, parts)
        except StorageUnavailable:
            raise
        except StorageError:
            if not self._holds(key, b"".join(parts)):
                raise

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self._storage.head(key).size == len(data) and self._storage.get(key) == data
        except StorageUnavailable:
            raise
        except StorageError:
            return False

    def _patiently(self, act: Callable[[], T]) -> T:
        return patiently(act, StorageUnavailable, self._patience)
