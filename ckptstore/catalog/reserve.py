"""Room on the catalog's disk that is kept for deleting, which SQLite needs some for: nothing could be freed otherwise
on a disk that others filled to its last byte.
"""

from __future__ import annotations

import os
from contextlib import suppress

_LEAST_BYTES = 256 * 1024
"""SQLite's index of a log takes 32 KiB, and one transaction may change all pages of a small catalog."""
_MOST_BYTES = 64 * 1024 * 1024
_SHARE = 4
"""Of a large one, a transaction of gc changes a part."""
_ROOM = 4
"""How many times as much must be free when it is taken."""


class Reserve:
    """A file beside a catalog's, of zeros."""

    def __init__(self, catalog: str) -> None:
        self._catalog, self._path = catalog, f"{catalog}-reserve"

    def fill(self) -> None:
        """Take what a catalog of this size needs, once a quarter of it is lacking and the disk has ample room."""
        with suppress(OSError):  # of a disk that is full after all, or a folder that may not be written to
            wanted = min(_LEAST_BYTES + os.stat(self._catalog).st_size // _SHARE, _MOST_BYTES)
            lacking = wanted - self._size()
            if 4 * lacking >= wanted and _free_bytes(self._catalog) >= _ROOM * lacking:
                with open(self._path, "ab") as file:
                    file.write(bytes(lacking))

    def give_way(self) -> bool:
        """Free half of it, and what is small whole; False when nothing is left."""
        left = self._size() // 2
        try:
            if left > _LEAST_BYTES // 32:
                os.truncate(self._path, left)
            else:
                os.unlink(self._path)
        except OSError:
            return False
        return True

    def _size(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(self._path).st_size
        return 0


def _free_bytes(path: str) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
