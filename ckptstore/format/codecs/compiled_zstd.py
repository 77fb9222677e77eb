"""Frames of zstd decoded within compiled loops: in memory that is in a core's cache, and without Python's lock.

The functions are those of the package zstandard, at the addresses that its binding by cffi tells.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, c_size_t, c_uint64
from functools import cache
from typing import Any

from numba import types
from zstandard._cffi import ffi, lib

from ckptstore.format.codecs.compiling import Loop, given, helping, read
from ckptstore.format.codecs.words import Plane


class Context:
    """What zstd decodes with, for one thread at a time; `address` is where it is."""

    def __init__(self) -> None:
        self._made = ffi.gc(lib.ZSTD_createDCtx(), lib.ZSTD_freeDCtx)
        self.address = int(ffi.cast("uintptr_t", self._made))


@cache
def decoding() -> Loop:
    """What fills `out` from a frame in `stored`; false unless that holds as many bytes."""
    held = _function("ZSTD_getFrameContentSize", c_uint64, 2)
    decompress = _function("ZSTD_decompressDCtx", c_size_t, 5)

    def decode(context: int, stored: Plane, start: int, length: int, out: Plane) -> bool:
        frame: int = stored.ctypes.data + start
        if held(frame, length) != out.size:
            return False
        done: bool = decompress(context, out.ctypes.data, out.size, frame, length) == out.size
        return done

    return helping(decode, types.boolean(types.uint64, read(1), types.int64, types.int64, given(1)))


def _function(name: str, result: Any, arguments: int) -> Any:
    """Addresses and sizes are as wide."""
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))
    return CFUNCTYPE(result, *[c_size_t] * arguments)(address)
