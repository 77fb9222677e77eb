"""How a chunk's bytes become a frame's payload: a registry by number.

A codec's number is part of the format and is never given to another.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ckptstore.errors import StoreTooNew
from ckptstore.format.codecs.base import BYTES, Buffer, Codec, Form
from ckptstore.format.codecs.raw import Raw
from ckptstore.format.codecs.zstd import Zstd

RAW: Codec = Raw()
ZSTD: Codec = Zstd()
_BY_NUMBER: dict[int, Codec] = {codec.number: codec for codec in (RAW, ZSTD)}

__all__ = ["BYTES", "RAW", "ZSTD", "Codec", "Encoded", "Form", "Level", "codec_numbered", "encode"]


def codec_numbered(number: int) -> Codec:
    """The codec of a number. Raises StoreTooNew for one that this version does not have."""
    codec = _BY_NUMBER.get(number)
    if codec is None:
        raise StoreTooNew(f"a frame was written with codec {number}, unknown here: upgrade ckptstore")
    return codec


Level = Literal["none", "fast", "auto", "best"]


class Encoded(NamedTuple):
    """A payload, the number of its codec, and whether it rests on the base that was offered."""

    codec: int
    payload: Buffer
    uses_base: bool = False


def encode(raw: memoryview, form: Form = BYTES, base: memoryview | None = None, level: Level = "fast") -> Encoded:
    """The number of the codec that suits a chunk, and its payload, which never grows.

    That is zstd where samples shrink well, raw otherwise: trained floats hardly shrink under zstd; zeros, masks,
    indices and token ids do.
    """
    if Zstd.promising(raw):
        payload = ZSTD.encode(raw)
        if len(payload) < len(raw):
            return Encoded(ZSTD.number, payload)
    return Encoded(RAW.number, RAW.encode(raw))
