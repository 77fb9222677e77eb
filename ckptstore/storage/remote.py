"""Objects in whatever fsspec reaches."""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import fsspec
from fsspec.dircache import DirCache

from ckptstore.errors import (
    CkptStoreError,
    CorruptData,
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from ckptstore.storage.base import Buffer, ObjectInfo, RangeRead
from ckptstore.storage.coalescing import coalesce, end_of
from ckptstore.storage.keys import check_key, check_prefix

_GAP = 128 << 10
_MOST = 16 << 20
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_SECRETS = ("secret", "password", "token")
_MODIFIED = ("LastModified", "updated", "modified", "mtime", "last_modified", "created")


class FsspecStorage:
    """A folder of an fsspec file system as `Storage`.

    Only file systems that store an object in one piece will do: a writer that is interrupted must not leave a part.

    Args:
        url: such as `s3://bucket/folder` or `memory://name`.
        storage_options: what fsspec passes on to the file system.

    Raises:
        InvalidArgument: an unknown scheme, a package that is not installed, options that the file system refuses, or
            a file system that may leave parts.
        StorageError: the file system cannot be reached.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._url = without_password(url)
        self._secrets = _secrets(url, storage_options or {})
        self._fs, root = _connect(url, storage_options or {})
        self._root = root.rstrip("/")
        self._creates = "mode" in inspect.signature(self._fs.pipe_file).parameters

    def __repr__(self) -> str:
        return f"FsspecStorage({self._url!r})"

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self._url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`. Two writers of one key at once are only told apart where the server can."""
        path = self._path(key)
        data = b"".join(parts)
        with self._writing(key):
            if self._fs.exists(path):  # some servers do not look at the condition of `create`
                raise FileExistsError(path)
            try:
                self._fs.pipe_file(path, data, **({"mode": "create"} if self._creates else {}))
            except Exception:
                if not self._landed(path, data):
                    raise

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        path = self._path(key)
        with self._reading(key):
            return bytes(self._fs.cat_file(path))

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`. Near ranges become one request."""
        path = self._path(key)
        groups = coalesce(reads, _GAP, _MOST)
        starts = [group[0].offset for group in groups]
        ends = [end_of(group[-1]) for group in groups]
        with self._reading(key):
            try:
                found = self._fs.cat_ranges([path] * len(groups), starts, ends, on_error="raise")
            except OSError as error:  # a server may refuse a range past the end
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
        folder = check_prefix(prefix)
        with self._reading(prefix):
            self._fs.invalidate_cache()
            found = self._fs.find(f"{self._root}/{folder}".rstrip("/"), detail=True)
        for path, info in found.items():
            key = path[len(self._root) + 1 :]
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

    def _landed(self, path: str, data: bytes) -> bool:
        """Whether a put that failed stored everything: its reply may be all that was lost."""
        try:
            return bool(self._fs.info(path)["size"] == len(data) and self._fs.cat_file(path) == data)
        except Exception:  # noqa: BLE001 - the put's own error is the one to tell
            return False

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"

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

    def _check_ends(self, key: str, groups: Sequence[Sequence[RangeRead]], cause: OSError) -> None:
        size = self.head(key).size
        for group in groups:
            for read in group:
                if size < end_of(read):
                    raise self._short(key, read, max(size - read.offset, 0)) from cause

    def _at(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except CkptStoreError:
            raise
        except FileNotFoundError as error:
            raise ObjectNotFound(f"no object at {self._at(key)}") from error
        except Exception as error:
            raise StorageError(f"cannot read {self._at(key)}: {_reason(error, self._secrets)}") from error

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        try:
            yield
        except CkptStoreError:
            raise
        except FileExistsError as error:
            raise ObjectExists(f"{self._at(key)} exists already; what is stored is never overwritten") from error
        except Exception as error:
            raise _write_error(error)(f"cannot write {self._at(key)}: {_reason(error, self._secrets)}") from error


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1@", url)


def _connect(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A file system of our own, that remembers no listing, and the path of `url` in it."""
    shown, secrets = without_password(url), _secrets(url, options)
    try:
        fs, root = fsspec.core.url_to_fs(url, **_defaults(url, options), skip_instance_cache=True)
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        advice = f'run: pip install "ckptstore[{extra}]"' if extra else str(error)
        raise InvalidArgument(f"{shown}: a package for this scheme is missing; {advice}") from error
    except OSError as error:
        raise StorageError(f"cannot reach {shown}: {_reason(error, secrets)}") from error
    except Exception as error:
        raise InvalidArgument(f"{shown}: fsspec cannot open this: {_reason(error, secrets)}") from error
    if getattr(fs.pipe_file, "__func__", None) is fsspec.AbstractFileSystem.pipe_file:
        raise InvalidArgument(f"{shown}: fsspec may leave half an object there; use a folder or an object store")
    if isinstance(getattr(fs, "dircache", None), DirCache):
        fs.dircache.use_listings_cache = False
    return fs, root


def _defaults(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options that a user need not know of."""
    if url.startswith(("gs://", "gcs://")):
        return {"consistency": "size", **options}  # gcsfs' small uploads may lose a carriage return at their end
    if url.startswith(("s3://", "s3a://")):
        # Some servers send the whole object's checksum with a range of it, and boto would refuse that range.
        config = {"response_checksum_validation": "when_required"} | dict(options.get("config_kwargs") or {})
        return {**options, "config_kwargs": config}
    return options


def _object_info(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    modified = next((info[name] for name in _MODIFIED if info.get(name) is not None), 0.0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    return ObjectInfo(key, info["size"], modified.timestamp() if isinstance(modified, datetime) else float(modified))


def _write_error(error: Exception) -> type[StorageError]:
    if isinstance(error, PermissionError):
        return StorageReadOnly
    return StorageFull if isinstance(error, OSError) and error.errno == errno.ENOSPC else StorageError


def _reason(error: Exception, secrets: Iterable[str]) -> str:
    told = f"{type(error).__name__}: {error}"
    for secret in secrets:
        told = told.replace(secret, "***")
    return told


def _secrets(url: str, options: Mapping[str, Any]) -> set[str]:
    """What must not be shown, of a URL and of options at any depth."""
    found = set(re.findall(r"://[^:/@]*:([^/]*)@", url))
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _secrets("", value)
        elif isinstance(value, str) and any(part in str(name).lower() for part in _SECRETS):
            found.add(value)
    return found - {""}
