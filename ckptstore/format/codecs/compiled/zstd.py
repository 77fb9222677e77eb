"""Frames of zstd made and decoded within compiled loops: what they hold stays in a core's cache, and no lock is held.

The functions are those of the package zstandard, at the addresses that its binding by cffi tells.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_size_t, c_uint64
from functools import cache
from typing import Any

from numba import types
from zstandard._cffi import ffi, lib

from ckptstore.format.codecs.compiled.compiling import Loop, given, helping, read
from ckptstore.format.codecs.entropy import PARAMETERS
from ckptstore.format.codecs.words import Plane


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


@cache
def decoding() -> Loop:
    """What fills `out` from one frame in `stored`, and nothing behind it; false unless that holds as many bytes."""
    held = _function("ZSTD_getFrameContentSize", c_uint64, 2)
    ends = _function("ZSTD_findFrameCompressedSize", c_size_t, 2)
    decompress = _function("ZSTD_decompressDCtx", c_size_t, 5)

    def decode(context: int, stored: Plane, start: int, length: int, out: Plane) -> bool:
        frame: int = stored.ctypes.data + start
        if held(frame, length) != out.size or ends(frame, length) != length:
            return False
        done: bool = decompress(context, out.ctypes.data, out.size, frame, length) == out.size
        return done

    return helping(decode, types.boolean(types.uint64, read(1), types.int64, types.int64, given(1)))


@cache
def coding() -> Loop:
    """What fills the beginning of `out`, which has room for any, with a frame: its length, below 0 without memory."""
    compress = _function("ZSTD_compress2", c_size_t, 5)

    def code(context: int, part: Plane, out: Plane) -> int:
        length: int = compress(context, out.ctypes.data, out.size, part.ctypes.data, part.size)
        return length

    return helping(code, types.int64(types.uint64, read(1), given(1)))


def _some(made: Any) -> Any:
    if made == ffi.NULL:
        raise MemoryError("no memory for zstd")
    return made


def _address(made: Any) -> int:
    return int(ffi.cast("uintptr_t", made))


def _function(name: str, result: Any, arguments: int) -> Any:
    """Addresses and sizes are as wide."""
    return CFUNCTYPE(result, *[c_size_t] * arguments)(_address(ffi.addressof(lib, name)))
