"""Messages as zstd frames: what many ranks say repeats itself."""

from __future__ import annotations

import zstandard


def pack(message: bytes) -> bytes:
    """A frame, in little time."""
    return zstandard.ZstdCompressor(level=1).compress(message)


def unpack(frame: bytes) -> bytes:
    """The inverse, of a frame that is trusted to be one, and not to be too large."""
    return zstandard.ZstdDecompressor().decompress(frame)
