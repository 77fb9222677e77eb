"""Files that survive a power cut: written whole beside their place, flushed, and only then given their name."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ckptstore.storage.base import Buffer

_BLOCK = 4 << 20
_OF_THREAD = threading.local()
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def write_file(path: Path, parts: Sequence[Buffer]) -> None:
    """Write a new file and flush it to the disk. After an error the file is not there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
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
    """Through an aligned block, past the page cache where the file system can: finding pages for what nobody reads soon
    costs more of the processor than all else.
    """
    _set_direct(descriptor, on=True)
    size = 0
    for filled in _blocks(parts):
        size += len(filled)
        _write(descriptor, _whole_pages(filled))
    os.ftruncate(descriptor, size)


def _blocks(parts: Sequence[Buffer]) -> Iterator[memoryview]:
    """The parts, one after another, in the thread's own block; each one is gone when the next is asked for."""
    block, used = _own_block(), 0
    for part in parts:
        rest = _as_bytes(part)
        while rest:
            count = min(len(rest), _BLOCK - used)
            block[used : used + count] = rest[:count]
            used, rest = used + count, rest[count:]
            if used == _BLOCK:
                yield block
                used = 0
    if used:
        yield block[:used]


def _own_block() -> memoryview:
    if not hasattr(_OF_THREAD, "block"):
        _OF_THREAD.block = memoryview(mmap.mmap(-1, _BLOCK))
    block: memoryview = _OF_THREAD.block
    return block


def _whole_pages(filled: memoryview) -> memoryview:
    """The same with what follows in its last page, since only whole pages are written past the page cache."""
    return _own_block()[: len(filled) + -len(filled) % mmap.PAGESIZE]


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        try:
            data = data[os.writev(descriptor, [data]) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _set_direct(descriptor, on=False):
                raise


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
