"""How a chunk's bytes become a frame's payload: a registry by number.

A codec's number is part of the format and is never given to another.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ckptstore.errors import StoreTooNew
from ckptstore.format.codecs.base import BYTES, Buffer, Codec, Form
from ckptstore.format.codecs.raw import Raw
from ckptstore.format.codecs.zstd import Zstd

RAW: Codec = Raw()
ZSTD: Codec = Zstd()
_HOMES = {0: "raw.Raw", 1: "zstd.Zstd", 2: "planes.Planes", 3: "delta.Delta"}
"""Imported when a frame needs them, since some bring numpy."""

__all__ = ["BYTES", "RAW", "ZSTD", "Codec", "Form", "codec_numbered", "encode"]


@cache
def codec_numbered(number: int) -> Codec:
    """The codec of a number. Raises StoreTooNew for one that this version does not have."""
    if number not in _HOMES:
        raise StoreTooNew(f"a frame was written with codec {number}, unknown here: upgrade ckptstore")
    module, name = _HOMES[number].split(".")
    codec: Codec = getattr(import_module(f"{__name__}.{module}"), name)()
    return codec


def encode(raw: memoryview) -> tuple[int, Buffer]:
    """The number of the codec that suits a chunk, and its payload, which never grows.

    That is zstd where samples shrink well, raw otherwise: trained floats hardly shrink under zstd; zeros, masks,
    indices and token ids do.
    """
    if Zstd.promising(raw):
        payload = ZSTD.encode(raw)
        if len(payload) < len(raw):
            return ZSTD.number, payload
    return RAW.number, RAW.encode(raw)
