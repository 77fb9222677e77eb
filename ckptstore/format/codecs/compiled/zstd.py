"""By which names compiled loops call zstd: what a frame holds stays in a core's cache so, and no lock is held."""

from __future__ import annotations

from llvmlite import binding as llvm

from ckptstore.format.codecs.binding import address_of

_FUNCTIONS = ("ZSTD_getFrameContentSize", "ZSTD_findFrameCompressedSize", "ZSTD_decompressDCtx", "ZSTD_compress2")


def symbol(name: str) -> str:
    """Of one of these functions: a name of their own, since others may bring another libzstd."""
    return f"ckptstore_{name}"


for _name in _FUNCTIONS:  # what calls one that LLVM does not know would end the process
    llvm.add_symbol(symbol(_name), address_of(_name))
