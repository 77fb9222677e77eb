"""Objects as files in a folder, durable as soon as `put` returns."""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptstore.errors import (
    CorruptData,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from ckptstore.format import version
from ckptstore.format.buffers import Buffer
from ckptstore.storage.base import ObjectInfo, RangeRead
from ckptstore.storage.durable import make_folder, publish, sync_folder, write_file
from ckptstore.storage.failures import FULL
from ckptstore.storage.keys import TEMPORARY, check_key, check_prefix
from ckptstore.storage.open_files import OpenFiles
from ckptstore.storage.page_cache import page_cache_of

_OPEN_FILES = 64
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_DAMAGED = {errno.EIO, errno.EBADMSG}
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStorage:
    """A folder as `Storage`.

    Args:
        root: the folder.
        create: make the folder if it is missing. Without it a missing folder reads as empty and cannot be written.

    Raises:
        StorageReadOnly, StorageError: the folder cannot be made.

    Once the settings of a store were read here, nothing is stored or deleted in the folder of another one that comes
    to lie at its path.
    """

    def __init__(self, root: Path, *, create: bool = False) -> None:
        self.root = Path(os.path.abspath(root))
        self._within = os.path.join(self.root, "")
        self._open_files = OpenFiles(_OPEN_FILES)
        self._durable_folders = {self.root}
        self._known: tuple[tuple[int, ...], bytes] | None = None
        with _reading(self.root):
            for place in (self.root, *self.root.parents):
                _check_may_be_folder(place)
        if create:
            with _writing(self.root):
                make_folder(self.root)

    def __repr__(self) -> str:
        return f"LocalStorage({str(self.root)!r})"

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self.root)

    @property
    def copies(self) -> int:
        """None: files are read into the buffers."""
        return 0

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `Storage.put`. A killed writer leaves only what `sweep_temporary` removes."""
        path = self._path(key)
        self._check_folder()
        if os.path.lexists(path):
            raise _exists(path)
        with _writing(path):
            self._make_folder_of(path)
            temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
            try:
                self._write(temporary, parts)
            except FileNotFoundError:  # somebody removed the folder
                self._durable_folders = {self.root}
                self._make_folder_of(path)
                self._write(temporary, parts)
            try:
                publish(temporary, path)
            except FileExistsError as error:
                raise _exists(path) from error

    def get(self, key: str) -> bytes:
        """See `Storage.get`."""
        path = self._path(key)
        mark = self._mark() if key == version.KEY else None
        with _reading(path):
            found = path.read_bytes()
        if mark is not None:
            self._known = mark, found
        return found

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """See `Storage.get_ranges`. Ranges are not merged: one system call costs less than what merging copies."""
        path = self._name(key)
        with _reading(path):
            file = self._open_files.get(path)
            for read in sorted(reads, key=lambda read: read.offset):
                done = file.read_into(read.offset, read.out)
                if done < len(read.out):
                    missing = f"{len(read.out)} bytes from offset {read.offset} on"
                    raise CorruptData(f"{path} ends {len(read.out) - done} bytes short of {missing}")

    def head(self, key: str) -> ObjectInfo:
        """See `Storage.head`."""
        path = self._path(key)
        with _reading(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ObjectNotFound(f"no object at {path}")
        return ObjectInfo(key, status.st_size, status.st_mtime)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `Storage.list`."""
        for entry in self._below(prefix):
            key = Path(entry.path).relative_to(self.root).as_posix()
            if key.startswith(prefix) and not entry.name.startswith(TEMPORARY):
                status = _status(entry)
                if status is not None:
                    yield ObjectInfo(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """See `Storage.delete`. Not flushed: after a power cut the object may be back."""
        path = self._path(key)
        self._check_folder()
        with _writing(path), suppress(*_MISSING):
            path.unlink()
        self._open_files.forget(str(path))

    def close(self) -> None:
        """See `Closing.close`: files that were read are open."""
        self._open_files.clear()

    def sweep_temporary(self, prefix: str, older_than_seconds: float) -> int:
        """Remove what killed writers left and nobody wrote to for so long; how many files there were.

        Names of unfinished files do not hold the key: in the prefix' own folder, those of all keys are removed.
        """
        limit = time.time() - older_than_seconds
        swept = 0
        for entry in self._below(prefix):
            status = _status(entry) if entry.name.startswith(TEMPORARY) else None
            if status is not None and status.st_mtime < limit:
                with _writing(Path(entry.path)), suppress(*_MISSING):
                    os.unlink(entry.path)
                    swept += 1
        return swept

    def occupants(self) -> Iterator[str]:
        """Names at the top, other than of folders in which no file is seen."""
        for entry in _entries(self.root):
            if not entry.name.startswith(TEMPORARY) and _holds_file(entry):
                yield entry.name

    def _below(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        """Files whose keys start so, and unfinished ones."""
        folder = check_prefix(prefix)
        start = prefix.rpartition("/")[2]
        for entry in _entries(self.root / folder):
            if entry.name.startswith((start, TEMPORARY)):
                yield from _files(entry)

    def _check_folder(self) -> None:
        """Raises StorageError when the store whose settings were read was moved away, and its path is another's.

        File systems may number files anew, so that what the settings say decides.
        """
        known, mark = self._known, self._mark()
        if known is None or mark == known[0]:
            return
        if mark is None or self._settings() != known[1]:
            problem = f"{self.root} is not the folder any more that was opened as a store: nothing was changed in it"
            raise StorageError(f"{problem}; open the store where it was moved to, or bring it back")
        self._known = mark, known[1]

    def _settings(self) -> bytes:
        path = self._path(version.KEY)
        with _reading(path):
            return path.read_bytes()

    def _mark(self) -> tuple[int, ...] | None:
        """What changes when other settings lie there; None where there are none."""
        with _reading(self.root), suppress(*_MISSING):
            status = os.stat(self._name(version.KEY))
            return status.st_dev, status.st_ino, status.st_mtime_ns
        return None

    def _write(self, path: Path, parts: Sequence[Buffer]) -> None:
        with page_cache_of(path.parent).writing(sum(memoryview(part).nbytes for part in parts)) as cached:
            write_file(path, parts, cached=cached)

    def _path(self, key: str) -> Path:
        return Path(self._name(key))

    def _name(self, key: str) -> str:
        """What `_path` is, made in less time."""
        check_key(key)
        return self._within + key

    def _make_folder_of(self, path: Path) -> None:
        """Another writer may have made the folder and not flushed its name yet, so the first use always flushes it."""
        folder = path.parent
        if folder in self._durable_folders:
            return
        if not self.root.is_dir():
            raise StorageError(f"{self.root} is not a folder: nothing can be stored there")
        folder.mkdir(parents=True, exist_ok=True)
        fresh = [name for name in (folder, *folder.parents) if name.is_relative_to(self.root)]
        fresh = [name for name in fresh if name not in self._durable_folders]
        for name in fresh:
            sync_folder(name.parent)
        self._durable_folders.update(fresh)


def _check_may_be_folder(place: Path) -> None:
    if place.is_file():
        raise StorageError(f"{place} is a file, not a folder: a store needs a folder of its own")
    if place.is_symlink() and not place.exists():
        problem = f"{place} is a link to {os.readlink(place)}, which is not there"
        raise StorageError(f"{problem}: make that folder, or remove the link")


def _files(entry: os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """This file, or those in this folder. Links to folders are not followed: they may lead round in circles."""
    if entry.is_dir(follow_symlinks=False):
        for below in _entries(Path(entry.path)):
            yield from _files(below)
    elif _is_file(entry):
        yield entry


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_file()
    return False


def _holds_file(entry: os.DirEntry[str]) -> bool:
    """Whether this is something else than a folder, or one in which files are; not if nobody may know."""
    with suppress(StorageError), _reading(Path(entry.path)):
        return not entry.is_dir() or any(True for below in _entries(Path(entry.path)) for _ in _files(below))
    return False


def _entries(folder: Path) -> Sequence[os.DirEntry[str]]:
    with _reading(folder):
        try:
            with os.scandir(folder) as entries:
                return tuple(entries)
        except _MISSING:
            return ()


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None when the file is gone by now."""
    with _reading(Path(entry.path)):
        try:
            return entry.stat()
        except _MISSING:
            return None


def _exists(path: Path) -> ObjectExists:
    return ObjectExists(f"{path} exists already; what is stored is never overwritten")


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    try:
        yield
    except _MISSING as error:
        raise ObjectNotFound(f"no object at {path}") from error
    except OSError as error:
        kind = CorruptData if error.errno in _DAMAGED else StorageError
        raise kind(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in FULL else StorageReadOnly if error.errno in _READ_ONLY else StorageError
        raise kind(f"cannot write {path}: {error.strerror}") from error
