"""Compiled loops in the user's cache folder: what took seconds to compile is there at once in every later process.

::

    loops/<what it was made of and for>/<name>    32 bytes of BLAKE2b, and machine code

Numba's own cache is of no use here: several processes that store variants of one loop at once mix them up, and it takes
numba, which takes longer to import than all loops to load.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from ckptstore.format import codecs

_DIGEST_BYTES = 32
_MADE_BY = ("llvmlite", "numba")
_OTHERS_MAY_WRITE = 0o022


class MachineCode:
    """See `Kept`. What others may have put there is not read; what cannot be written is compiled by every process."""

    def read(self, name: str) -> bytes | None:
        """None also for what is damaged, and where numba is told not to compile."""
        with suppress(OSError):
            if folder := _folder():
                content = _content(folder, name)
                digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                return code if digest == _digest(code) else None
        return None

    def write(self, name: str, code: bytes) -> None:
        """Whole, or not at all; not where the sources were changed since this process looked at them."""
        with suppress(OSError):
            folder = _folder()
            if folder and folder == _folder_now():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _is_ours(folder):
                    _replace(folder / name, _digest(code) + code)


KEPT = MachineCode()


def _folder_now() -> Path | None:
    """One for what all loops are made of and for; None where that is not known, or not wanted."""
    from ckptstore.format.codecs.compiled.machine import processor

    sources = sorted(Path(*codecs.__path__).rglob("*.py"))
    if not sources or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    try:
        import platformdirs  # with llvmlite and numba, which not everyone has

        folder = platformdirs.user_cache_path("ckptstore") / "loops"
        tools = [version(name) for name in _MADE_BY]
    except (ImportError, RuntimeError):  # the latter where nobody knows whose folder
        return None
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))
    made_of = blake2b(digest_size=16)
    for part in (*map(str.encode, (*processor(), *tools, *settings)), *(source.read_bytes() for source in sources)):
        made_of.update(part + b"\0")
    return folder / made_of.hexdigest() if folder.is_absolute() else None


_folder = cache(_folder_now)


def _content(folder: Path, name: str) -> bytes:
    """Of a file of ours in a folder of ours; empty when either is not."""
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within), "rb") as file:
            return file.read() if _is_ours(within) and _is_ours(file.fileno()) else b""
    finally:
        os.close(within)


def _replace(path: Path, content: bytes) -> None:
    descriptor, fresh = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def _is_ours(place: Path | int) -> bool:
    status = os.stat(place)
    return status.st_uid == os.getuid() and not status.st_mode & _OTHERS_MAY_WRITE


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=_DIGEST_BYTES).digest()
