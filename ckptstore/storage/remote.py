"""Objects in whatever fsspec reaches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from ckptstore.errors import (
    CkptStoreError,
    CorruptData,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from ckptstore.format.buffers import Buffer
from ckptstore.storage.base import GAP, ObjectInfo, RangeRead
from ckptstore.storage.clients import (
    abort_uploads,
    connect,
    deadline,
    every_file,
    how_to_put,
    is_taken,
    is_web,
    stores_whole,
    turns,
)
from ckptstore.storage.coalescing import coalesce, end_of
from ckptstore.storage.failures import read_error, reason, secrets_of, transient, without_password, write_error
from ckptstore.storage.keys import check_key, check_prefix

_MOST = 16 << 20
_REFUSAL = (
    "can only be read: fsspec cannot store an object there whole or not at all; write to a folder or an object store"
)
_MODIFIED = ("LastModified", "updated", "modified", "mtime", "last_modified", "created")


class FsspecStorage:
    """A folder of an fsspec file system as `Storage`.

    What fails for a moment is StorageUnavailable here; `Retrying` tries again.

    Args:
        url: such as `s3://bucket/folder` or `memory://name`.
        storage_options: what fsspec passes on to the file system.

    Raises:
        InvalidArgument: an unknown scheme, a package that is not installed, or options that the file system refuses.
        StorageError: the file system cannot be reached.

    Attributes:
        refusal: why nothing can be stored there: a writer that is interrupted must not leave a part. Else "".
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._reached_by = url, dict(storage_options or {})
        self._url = without_password(url)
        self._secrets = secrets_of(*self._reached_by)
        client, root = connect(*self._reached_by)
        self._clients = {os.getpid(): client}
        self._root = root.rstrip("/")
        self._turn = turns(self._fs)
        self._web = is_web(url)
        self._how = how_to_put(self._fs)
        self.refusal = "" if stores_whole(self._fs) and not self._web else f"{self._url} {_REFUSAL}"

    def __reduce__(self) -> tuple[type[FsspecStorage], tuple[str, Mapping[str, Any]]]:
        return type(self), self._reached_by

    def __repr__(self) -> str:
        return f"FsspecStorage({self._url!r})"

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._url

    @property
    def _fs(self) -> Any:
        """This process's own client; a parent's stays, unused."""
        process = os.getpid()
        if process not in self._clients:
            self._clients.setdefault(process, connect(*self._reached_by)[0])
        return self._clients[process]

    @property
    def copies(self) -> int:
        """Two: the pieces in which a reply arrives, and those joined."""
        return 2

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`. Two writers of one key at once are only told apart where the server can."""
        path = self._path(key)
        with self._writing(key):
            if is_taken(self._fs, path):  # some servers do not look at the condition of `create`
                raise FileExistsError(path)
            data = b"".join(parts)
            self._fs.pipe_file(path, data, **self._how, **deadline(self._fs, len(data)))

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        path = self._path(key)
        with self._reading(key):
            return bytes(self._fs.cat_file(path))

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`. Near ranges become one request."""
        path = self._path(key)
        groups = coalesce(reads, GAP, _MOST)
        starts = [group[0].offset for group in groups]
        ends = [end_of(group[-1]) for group in groups]
        with self._reading(key):
            try:
                found = self._fs.cat_ranges([path] * len(groups), starts, ends, on_error="raise")
            except Exception as error:
                if not transient(error):  # a server may refuse a range past the end
                    self._check_ends(key, groups, error)
                raise
        for group, data in zip(groups, found, strict=True):
            self._deliver(key, group, memoryview(data))

    def head(self, key: str) -> ObjectInfo:
        """See `Storage.head`."""
        path = self._path(key)
        with self._reading(key):
            info = self._fs.info(path)
            if info["type"] != "file":
                raise FileNotFoundError(path)
            return _object_info(key, info)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Storage.list`."""
        folder = f"{self._root}/{self._quoted(check_prefix(prefix))}".rstrip("/")
        with self._reading(prefix):
            self._fs.invalidate_cache()
            found = every_file(self._fs, folder) if self.refusal else self._fs.find(folder, detail=True).items()
            listed = [(path[len(self._root) + 1 :], info) for path, info in found]
        for name, info in listed:
            key = unquote(name) if self._web else name
            if key.startswith(prefix):
                yield _object_info(key, info)

    def delete(self, key: str) -> None:
        """See `Storage.delete`."""
        path = self._path(key)
        with self._writing(key):
            try:
                self._fs.rm_file(path)
            except FileNotFoundError:
                return

    def sweep_temporary(self, prefix: str, older_than_seconds: float) -> int:
        """Abort uploads in parts that killed writers have begun and not finished; how many there were."""
        with self._writing(prefix):
            return abort_uploads(self._fs, f"{self._root}/{prefix}", older_than_seconds)

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{self._quoted(key)}"

    def _quoted(self, key: str) -> str:
        return quote(key) if self._web else key

    def _deliver(self, key: str, group: Sequence[RangeRead], data: memoryview) -> None:
        for read in group:
            start = read.offset - group[0].offset
            part = data[start : start + len(read.out)]
            if len(part) < len(read.out):
                raise self._short(key, read, len(part))
            read.out[:] = part

    def _short(self, key: str, read: RangeRead, found: int) -> CorruptData:
        wanted = f"{len(read.out)} bytes from offset {read.offset} on"
        return CorruptData(f"{self._at(key)} ends {len(read.out) - found} bytes short of {wanted}")

    def _check_ends(self, key: str, groups: Sequence[Sequence[RangeRead]], cause: Exception) -> None:
        size = self.head(key).size
        for group in groups:
            for read in group:
                if size < end_of(read):
                    raise self._short(key, read, max(size - read.offset, 0)) from cause

    def _at(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with self._translating("read", key, read_error):
            yield

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        with self._translating("write", key, write_error):
            yield

    @contextmanager
    def _translating(self, verb: str, key: str, kind: Callable[[Exception], type[StorageError]]) -> Iterator[None]:
        try:
            with self._turn:
                yield
        except CkptStoreError:
            raise
        except Exception as error:
            found = kind(error)
            raise found(_message(found, verb, self._at(key), reason(error, self._secrets))) from error


def _message(kind: type[StorageError], verb: str, at: str, why: str) -> str:
    if kind is ObjectNotFound:
        return f"no object at {at}"
    if kind is ObjectExists:
        return f"{at} exists already; what is stored is never overwritten"
    advice = "; the storage did not answer: try again later" if kind is StorageUnavailable else ""
    return f"cannot {verb} {at}: {why}{advice}"


def _object_info(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    modified = next((info[name] for name in _MODIFIED if info.get(name) is not None), 0.0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    return ObjectInfo(key, info["size"], modified.timestamp() if isinstance(modified, datetime) else float(modified))
