"""What frames of zstd are made and decoded with within compiled loops: what they hold stays in a core's cache, and no
lock is held.

The functions are those of the package zstandard, at the addresses that its binding by cffi tells.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding as llvm
from zstandard._cffi import ffi, lib

from ckptstore.format.codecs.entropy import PARAMETERS


class Decoder:
    """What zstd decodes with, for one thread at a time; `address` is where it is."""

    def __init__(self) -> None:
        self._made = ffi.gc(_some(lib.ZSTD_createDCtx()), lib.ZSTD_freeDCtx)
        self.address = _address(self._made)


class Encoder:
    """What zstd codes with, the same way."""

    def __init__(self) -> None:
        self._made = ffi.gc(_some(lib.ZSTD_createCCtx()), lib.ZSTD_freeCCtx)
        for name, value in PARAMETERS.items():
            first, *others = name.split("_")
            number = getattr(lib, "ZSTD_c_" + first + "".join(map(str.capitalize, others)))
            if lib.ZSTD_isError(lib.ZSTD_CCtx_setParameter(self._made, number, value)):
                raise ValueError(f"zstd does not take {name}={value}")
        self.address = _address(self._made)


def symbol(name: str) -> str:
    """By which loops call one of `_FUNCTIONS`: of their own, since others may bring another libzstd."""
    return f"ckptstore_{name}"


def _some(made: Any) -> Any:
    if made == ffi.NULL:
        raise MemoryError("no memory for zstd")
    return made


def _address(made: Any) -> int:
    return int(ffi.cast("uintptr_t", made))


_FUNCTIONS = ("ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize", "ZSTD_decompressDCtx", "ZSTD_compress2")
for _name in _FUNCTIONS:  # what calls one that LLVM does not know would end the process
    llvm.add_symbol(symbol(_name), _address(ffi.addressof(lib, _name)))
