"""Room on the catalog's disk that is kept for deleting, which SQLite needs some for: nothing could be freed otherwise
on a disk that others filled to its last byte.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

_LEAST_BYTES = 256 * 1024
"""SQLite's index of a log takes 32 KiB."""
_MOST_BYTES = 64 * 1024 * 1024
_ROOM = 4
"""How many times as much must be free when it is taken."""


class Reserve:
    """A file beside a catalog's, of zeros."""

    def __init__(self, catalog: str) -> None:
        self._catalog = catalog

    def fill(self) -> None:
        """Take what a transaction writes that changes all of the catalog, where the disk has ample room.

        And a quarter more, since a catalog grows with each commit.
        """
        with suppress(OSError):  # of a disk that is full after all, or a folder that may not be written to
            catalog, size = os.stat(self._catalog), self._size()
            needed = min(_LEAST_BYTES + catalog.st_size, _MOST_BYTES)
            wanted = min(needed + needed // 4, _MOST_BYTES)
            if size < needed and _free_bytes(self._catalog) >= _ROOM * (wanted - size):
                self._extend(wanted, stat.S_IMODE(catalog.st_mode))

    def give_way(self) -> bool:
        """Free half of it, and what is small whole; False when nothing is left, or nothing may be done about it."""
        try:
            left = self._size() // 2
            if left > _LEAST_BYTES // 32:
                with suppress(PermissionError):  # whose it is may differ from whose the folder is
                    os.truncate(self._path, left)
                    return True
            os.unlink(self._path)
        except OSError:
            return False
        return True

    def _extend(self, wanted: int, mode: int) -> None:
        """Who shares the catalog may use it. Two processes that do this at once write the same."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            size = os.fstat(descriptor).st_size
            os.pwrite(descriptor, bytes(max(wanted - size, 0)), size)
            with suppress(OSError):
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    @property
    def _path(self) -> str:
        """Beside the file itself, as SQLite's log is."""
        return f"{os.path.realpath(self._catalog)}-reserve"

    def _size(self) -> int:
        """Raises OSError for what is no file."""
        with suppress(FileNotFoundError):
            status = os.lstat(self._path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
            return status.st_size
        return 0


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
