"""How a chunk's bytes become a frame's payload: a registry by number.

A codec's number is part of the format and is never given to another.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from ckptstore.errors import StoreTooNew
from ckptstore.format.codecs.base import BYTES, DELTA, PLANES, Codec, Effort, Encoded, Form, Level
from ckptstore.format.codecs.raw import Raw
from ckptstore.format.codecs.zstd import Zstd
from ckptstore.format.packs import MOST_ENCODED

if TYPE_CHECKING:
    from ckptstore.format.codecs.choice import Candidate

RAW: Codec = Raw()
ZSTD: Codec = Zstd()
ANY_GAIN = 0.98
"""What is smaller by less is not worth decoding two chunks for, whoever asks."""
_SMALLEST = 256
_APART, _ABOUT = 1.005, 1.02
"""How exactly samples tell one size from another, and how exactly what a chunk takes."""
_HOMES = {0: "raw.Raw", 1: "zstd.Zstd", PLANES: "planes.Planes", DELTA: "delta.Delta", 4: "adam.Adam"}
"""Imported when a frame needs them, since some bring numpy."""

__all__ = [
    "ANY_GAIN",
    "BYTES",
    "DELTA",
    "RAW",
    "ZSTD",
    "Codec",
    "Effort",
    "Encoded",
    "Form",
    "Level",
    "codec_numbered",
    "differs_little",
    "encode",
]


@cache
def codec_numbered(number: int) -> Codec:
    """The codec of a number. Raises StoreTooNew for one that this version does not have."""
    if number not in _HOMES:
        raise StoreTooNew(f"a frame was written with codec {number}, unknown here: upgrade ckptstore")
    module, name = _HOMES[number].split(".")
    codec: Codec = getattr(import_module(f"{__name__}.{module}"), name)()
    return codec


def encode(
    raw: memoryview,
    form: Form = BYTES,
    base: memoryview | None = None,
    level: Effort = "fast",
    reliance: float = ANY_GAIN,
) -> Encoded:
    """The smallest of the encodings that a level looks at, as far as samples tell; it is never larger than `raw`.

    "none" stores bytes as they are. "light" looks at zstd, and takes it where it halves them, "fast" at zstd and
    planes. "auto" and "best" look at the difference to `base` too, the raw bytes of an older chunk, and take it where
    that is at most the share `reliance` of what the chunk takes alone. "best" takes the smaller of the two
    encodings that seem best, unless a sample tells the second one to be larger than the first one seems, and comes out;
    of small chunks that of what "auto" would take is always one of them.
    """
    if level != "none" and _SMALLEST <= len(raw) <= MOST_ENCODED:
        from ckptstore.format.codecs.choice import UNSURE, candidates, worth

        smallest, size = None, worth(level) * len(raw)
        found = candidates(raw, form, base, level, reliance)[: 2 if level == "best" else 1]
        for each in found:
            if smallest is not None and len(raw) > UNSURE and _is_larger(each, found[0], size / len(raw)):
                break
            payload = each.encode()
            if len(payload) < size:
                smallest, size = Encoded(each.codec, payload, each.alone, each.added), len(payload)
        if smallest is not None:
            return smallest
    return Encoded(RAW.number, RAW.encode(raw))


def _is_larger(second: Candidate, first: Candidate, share: float) -> bool:
    """Whether that seems so, where the first takes a share. What zstd finds repeated may lie farther apart than samples
    see, and its sample is another one.
    """
    if second.codec == ZSTD.number:
        return False
    if first.codec == ZSTD.number:
        return second.share > _ABOUT * share
    return second.share > _APART * first.share and share <= second.share


def differs_little(raw: memoryview, form: Form, base: memoryview, reliance: float) -> bool:
    """Whether the difference to `base` seems to take at most the share `reliance` of what the chunk takes alone."""
    from ckptstore.format.codecs import choice

    return choice.differs_little(raw, form, base, reliance)
