"""zstd's own functions, of the package zstandard, by its binding for cffi; importing this takes cffi.

Unlike zstandard's other binding, this one can tell zstd to look for matches in one place of 65 and to code the rest by
Huffman all the same; otherwise zstd takes who hardly looks for matches for someone who wants no Huffman coding either.
What repeats itself needs the search. Compiled loops call the functions by their addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from zstandard._cffi import ffi, lib

from ckptstore.format.codecs.entropy import PARAMETERS, PlaneCoder
from ckptstore.format.codecs.words import Plane

_TARGET_LENGTH = 64  # places that are skipped, as zstd's strategy "fast" takes it
_LITERALS, _CODED = 1002, 1  # ZSTD_c_literalCompressionMode and ZSTD_ps_enable, for which the binding has no names


class Encoder(PlaneCoder):
    """What zstd codes with, for one thread at a time; `address` is where it is.

    Args:
        searching: look for matches everywhere.
    """

    def __init__(self, *, searching: bool) -> None:
        self._made = ffi.gc(_some(lib.ZSTD_createCCtx()), lib.ZSTD_freeCCtx)
        for name, value in PARAMETERS.items():
            first, *others = name.split("_")
            if not self._takes(getattr(lib, "ZSTD_c_" + first + "".join(map(str.capitalize, others))), value):
                raise ValueError(f"zstd does not take {name}={value}")
        if not searching and self._takes(_LITERALS, _CODED):
            self._takes(lib.ZSTD_c_targetLength, _TARGET_LENGTH)
        self.address = _address(self._made)

    def frame(self, plane: Plane) -> Plane:
        """See `PlaneCoder.frame`."""
        out = np.empty(lib.ZSTD_compressBound(len(plane)), np.uint8)
        size = lib.ZSTD_compress2(self._made, ffi.from_buffer(out), len(out), ffi.from_buffer(plane), len(plane))
        if lib.ZSTD_isError(size):
            raise MemoryError("no memory for zstd")
        return out[:size]

    def _takes(self, parameter: int, value: int) -> bool:
        return not lib.ZSTD_isError(lib.ZSTD_CCtx_setParameter(self._made, parameter, value))


class Decoder:
    """What zstd decodes with, the same way."""

    def __init__(self) -> None:
        self._made = ffi.gc(_some(lib.ZSTD_createDCtx()), lib.ZSTD_freeDCtx)
        self.address = _address(self._made)


def address_of(function: str) -> int:
    """Where one of zstd's functions is."""
    return _address(ffi.addressof(lib, function))


def _some(made: Any) -> Any:
    if made == ffi.NULL:
        raise MemoryError("no memory for zstd")
    return made


def _address(made: Any) -> int:
    return int(ffi.cast("uintptr_t", made))
