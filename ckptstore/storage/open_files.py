"""A few files kept open for reading, so that a pack of many chunks is opened once."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from ckptstore.locks import Lock

_HINT = 128 << 10
"""Of a longer hint, Linux may follow the start alone: as much as it reads ahead, or as the disk takes at once."""


class OpenFile:
    """A descriptor that is closed when the last thread that reads through it lets go."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` is gone when the interpreter ends
        if self._descriptor >= 0:
            close(self._descriptor)

    def read_into(self, offset: int, out: memoryview) -> int:
        """Fill `out` from `offset` on; how many bytes there were before the end of the file."""
        done = 0
        while done < len(out):
            got = os.preadv(self._descriptor, [out[done:]], offset + done)
            if not got:
                break
            done += got
        return done

    def prefetch(self, offset: int, length: int) -> None:
        """Let the kernel read this, unless the last of it is in the page cache."""
        end = min(offset + length, os.fstat(self._descriptor).st_size)
        if sys.platform == "linux" and end > offset and not (cached := self._is_cached(end - 1)):
            hint = end - offset if cached is None else _HINT
            for start in range(offset, end, hint):
                os.posix_fadvise(self._descriptor, start, min(hint, end - start), os.POSIX_FADV_WILLNEED)

    def _is_cached(self, offset: int) -> bool | None:
        """None where the file system does not tell, as one in memory, which may read ahead or not as it likes."""
        try:
            return os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except OSError:
            return None


class OpenFiles:
    """At most `most` open files, the longest unused given up first. Safe to use from several threads, and to pickle."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return OpenFiles, (self._most,)

    def get(self, path: str) -> OpenFile:
        """The file, opened if need be."""
        with self._lock:
            known = self._files.pop(path, None)
            if known is not None:
                self._files[path] = known
                return known
        opened = OpenFile(path)
        with self._lock, suppress(KeyError):  # a signal's handler has cleared it meanwhile
            self._files[path] = opened
            if len(self._files) > self._most:
                self._files.popitem(last=False)
        return opened

    def forget(self, path: str) -> None:
        """Give up a file, so that its space is freed when it is deleted."""
        with self._lock:
            self._files.pop(path, None)

    def clear(self) -> None:
        """Give up all files."""
        with self._lock:
            self._files.clear()
