"""Storages around a storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckptstore.errors import StorageReadOnly
from ckptstore.storage.base import Buffer, ObjectInfo, RangeRead, Storage


class ReadOnly:
    """Reads pass; `put` and `delete` raise StorageReadOnly."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def url(self) -> str:
        """Where the wrapped storage is."""
        return self._storage.url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Raises StorageReadOnly."""
        raise StorageReadOnly(f"{self.url} was opened for reading only, so {key} cannot be stored")

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
        raise StorageReadOnly(f"{self.url} was opened for reading only, so {key} cannot be deleted")
