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
            if (folder := _folder()) and _is_ours(folder):
                content = (folder / name).read_bytes()
                digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
                return code if digest == _digest(code) else None
        return None

    def write(self, name: str, code: bytes) -> None:
        """Whole, or not at all."""
        with suppress(OSError):
            if folder := _folder():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _is_ours(folder):
                    _replace(folder / name, _digest(code) + code)


KEPT = MachineCode()


@cache
def _folder() -> Path | None:
    """One for what all loops are made of and for; None where that is not known, or not wanted."""
    from ckptstore.format.codecs.compiled.machine import processor

    sources = sorted(Path(*codecs.__path__).rglob("*.py"))
    if not sources or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return None
    try:
        import platformdirs  # with llvmlite and numba, which not everyone has

        tools = [version(name) for name in _MADE_BY]
    except ImportError:
        return None
    made_of = blake2b(digest_size=16)
    for part in (*map(str.encode, (*processor(), *tools)), *(source.read_bytes() for source in sources)):
        made_of.update(part + b"\0")
    return platformdirs.user_cache_path("ckptstore") / "loops" / made_of.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    descriptor, fresh = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise


def _is_ours(folder: Path) -> bool:
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & _OTHERS_MAY_WRITE


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=_DIGEST_BYTES).digest()
