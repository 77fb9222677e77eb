"""A few files kept open for reading, so that a pack of many chunks is opened once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident

from ckptstore.locks import Lock


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


class OpenFiles:
    """At most `most` open files, the longest unused given up first. Safe to use from several threads, and to pickle.

    Each thread has descriptors of its own: the kernel reads ahead of what is read through one, where that goes on.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[tuple[str, int], OpenFile] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return OpenFiles, (self._most,)

    def get(self, path: str) -> OpenFile:
        """The file, opened if need be."""
        key = path, get_ident()
        with self._lock:
            known = self._files.pop(key, None)
            if known is not None:
                self._files[key] = known
                return known
        opened = OpenFile(path)
        with self._lock, suppress(KeyError):  # a signal's handler has cleared it meanwhile
            self._files[key] = opened
            if len(self._files) > self._most:
                self._files.popitem(last=False)
        return opened

    def forget(self, path: str) -> None:
        """Give up a file, so that its space is freed when it is deleted."""
        with self._lock:
            for key in [key for key in tuple(self._files) if key[0] == path]:
                self._files.pop(key, None)

    def clear(self) -> None:
        """Give up all files."""
        with self._lock:
            self._files.clear()
