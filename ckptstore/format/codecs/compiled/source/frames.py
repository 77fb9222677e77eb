"""Frames of zstd made and decoded within compiled loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.source.compiling import Helper, given, helping, read
from ckptstore.format.codecs.compiled.zstd import symbol
from ckptstore.format.codecs.entropy import SCARCE
from ckptstore.format.codecs.words import Plane


@cache
def decoding() -> Helper:
    """What fills `out` from one frame in `stored`, and nothing behind it; false unless that holds as many bytes."""
    held = _function("ZSTD_getFrameContentSize", 2)
    ends = _function("ZSTD_findFrameCompressedSize", 2)
    decompress = _function("ZSTD_decompressDCtx", 5)

    def decode(context: int, stored: Plane, start: int, length: int, out: Plane) -> bool:
        frame: int = stored.ctypes.data + start
        if held(frame, length) != out.size or ends(frame, length) != length:
            return False
        done: bool = decompress(context, out.ctypes.data, out.size, frame, length) == out.size
        return done

    return helping(decode, types.boolean(types.uint64, read(1), types.int64, types.int64, given(1)))


@cache
def coding() -> Helper:
    """How small a part is: as it is, as one byte for all, or as a frame, which is at the beginning of `out` then.

    Below 0 without memory. See `PlaneCoder`; `out` has room for any frame.
    """
    compress = _function("ZSTD_compress2", 5)

    def code(context: int, part: Plane, out: Plane) -> int:
        same = part.size > 0 and part[0] == part[part.size - 1]
        for place in range(part.size if same else 0):
            same &= part[place] == part[0]
        if same or part.size == 0:
            return min(part.size, 1)
        length: Any = np.int64(compress(context, out.ctypes.data, out.size, part.ctypes.data, part.size))
        return length if length < SCARCE * part.size else part.size

    return helping(code, types.int64(types.uint64, read(1), given(1)))


def _function(name: str, arguments: int) -> Any:
    """Addresses and sizes are as wide."""
    return types.ExternalFunction(symbol(name), types.uint64(*[types.uint64] * arguments))
