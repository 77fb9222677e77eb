"""Files that survive a power cut: written whole beside their place, flushed, and only then given their name."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ckptstore.format.buffers import Buffer, address_of
from ckptstore.format.packs import LARGE, SECTOR

_BLOCK = 4 << 20
_MUCH = 64 << 10
_OF_THREAD = threading.local()
_NOT_DIRECT = {errno.EINVAL, errno.EFAULT}
"""What a disk says of what is at no sector, and of memory that it cannot read from, as some devices' is."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def write_file(path: Path, parts: Sequence[Buffer], *, cached: bool = False) -> None:
    """Write a new file and flush it to the disk. After an error the file is not there.

    Args:
        path: the file.
        parts: its content.
        cached: write through the page cache. Otherwise past it, where the file system can.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _set_direct(descriptor, on=not cached)
            _write_all(descriptor, parts)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def publish(temporary: Path, path: Path) -> None:
    """Give a written file its name, durably. Raises FileExistsError when the name is taken; the file is gone then."""
    try:
        _rename_without_replacing(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and the parents it lacks, and flush the names of all that were made."""
    made = []
    while not folder.is_dir():
        made.append(folder)
        folder = folder.parent
    for new in reversed(made):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder; some file systems cannot, and need not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _rename_without_replacing(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_under_lock(temporary, path)
    else:
        os.unlink(temporary)


def _rename_under_lock(temporary: Path, path: Path) -> None:
    """For file systems without hard links: every writer of the folder waits for its turn to look and rename."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.rename(temporary, path)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    writing = _Writing(descriptor)
    for part in parts:
        writing.add(_as_bytes(part))
    writing.finish()


class _Writing:
    """Parts on their way to a file, most of them through an aligned block, which costs a copy; in whole pages."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._block = descriptor, _own_block()
        self._used = self._size = 0

    def add(self, part: memoryview) -> None:
        """Write it, but for what fills no page yet."""
        self._size += len(part)
        address = address_of(part) if len(part) >= LARGE else None
        if address is not None and (self._used - address) % SECTOR == 0:
            head = -address % SECTOR
            self._add_to_block(part[:head])
            part = self._write_as_it_lies(part[head:])
        self._add_to_block(part)

    def _add_to_block(self, part: memoryview) -> None:
        while part:
            count = min(len(part), _BLOCK - self._used)
            _copy(part[:count], self._block[self._used : self._used + count])
            self._used, part = self._used + count, part[count:]
            if self._used == _BLOCK:
                self._write([self._block])
                self._used = 0

    def finish(self) -> None:
        """Write the rest, with what follows in its last page, which is cut off."""
        self._write([self._block[: self._used + -self._used % mmap.PAGESIZE]])
        os.ftruncate(self._descriptor, self._size)

    def _write_as_it_lies(self, part: memoryview) -> memoryview:
        """Behind what is in the block, in whole pages; what is left, which is all where the disk refuses it."""
        now = (self._used + len(part)) // mmap.PAGESIZE * mmap.PAGESIZE - self._used
        data = [self._block[: self._used], part[:now]]
        try:
            done = os.writev(self._descriptor, data)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            return part
        self._write(_after(data, done))
        self._used = 0
        return part[now:]

    def _write(self, data: list[memoryview]) -> None:
        while any(data):
            try:
                data = _after(data, os.writev(self._descriptor, data))
            except OSError as error:
                if error.errno not in _NOT_DIRECT or not _set_direct(self._descriptor, on=False):
                    raise


def _after(data: list[memoryview], done: int) -> list[memoryview]:
    """What is left when so many bytes were written."""
    rest = []
    for some in data:
        rest.append(some[done:])
        done = max(done - len(some), 0)
    return rest


def _own_block() -> memoryview:
    if not hasattr(_OF_THREAD, "block"):
        _OF_THREAD.block = memoryview(mmap.mmap(-1, _BLOCK))
    block: memoryview = _OF_THREAD.block
    return block


def _copy(source: memoryview, target: memoryview) -> None:
    """What is large, without Python's lock, which others wait for."""
    here, there = (address_of(source), address_of(target)) if len(source) >= _MUCH else (None, None)
    if here is None or there is None:
        target[:] = source
    else:
        ctypes.memmove(there, here, len(source))


def _set_direct(descriptor: int, *, on: bool) -> bool:
    """Whether that changed anything; not every system and file system can."""
    direct = getattr(os, "O_DIRECT", 0)
    before = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, before | direct if on else before & ~direct)
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) != before


def _as_bytes(part: Buffer) -> memoryview:
    """A buffer as a flat view of bytes, whatever its items are."""
    view = memoryview(part)
    return view.cast("B") if view.nbytes else memoryview(b"")
