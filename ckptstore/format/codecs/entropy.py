"""One plane of bytes, as small as it gets at the speed of a disk: as it is, one byte for all, or a zstd frame.

Bytes of trained floats have few values and no repetitions, so what pays is zstd's Huffman coding and not its search for
matches: a tiny hash table and long matches code them 2.5 times as fast as level 1 does, and smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.lib.stride_tricks import as_strided

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane

_SCARCE = 0.98  # what saves less is not worth the time of decoding

_NONE = np.empty(0, np.uint8)
_MANY = "multi_decompress_to_buffer"
"""Missing where zstandard was built with the system's libzstd."""
_HUFFMAN = zstandard.ZstdCompressionParameters(
    compression_level=1, strategy=zstandard.STRATEGY_FAST, hash_log=6, chain_log=6, min_match=7, search_log=1
)


class PlaneCoder:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=_HUFFMAN)

    def encode(self, plane: Plane) -> Plane:
        """The smallest of the three; it may share memory with the plane."""
        if len(plane) and plane[0] == plane[-1] and (plane[0] == plane).all():
            return plane[:1]
        coded = self._zstd.compress(plane.data)
        return np.frombuffer(coded, np.uint8) if len(coded) < _SCARCE * len(plane) else plane


class PlaneDecoder:
    """The inverse, for many planes at once. Not for several threads at once."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()
        self._room = _NONE

    def decode(self, frames: list[memoryview], sizes: Sequence[int]) -> Plane:
        """What the frames hold, one behind the other, until the next call; each is of the size given.

        Raises CorruptData.
        """
        if not frames:
            return _NONE
        try:
            for frame, size in zip(frames, sizes, strict=True):
                if not 0 < size == zstandard.frame_content_size(frame) or size > BLOCK_WORDS:
                    raise CorruptData(f"a plane does not hold the {size} bytes it stands for")
            if _MANY not in zstandard.backend_features:
                return np.frombuffer(b"".join(map(self._zstd.decompress, frames)), np.uint8)
            return self._joined(self._zstd.multi_decompress_to_buffer([*frames]), sum(sizes))
        except (zstandard.ZstdError, ValueError) as error:
            raise CorruptData(f"a plane does not decode: {error}") from error

    def _joined(self, found: Any, size: int) -> Plane:
        """All segments, without a copy where they are those of one buffer, and so lie one behind the other."""
        last = found[len(found) - 1]
        if last.offset + len(last) == size:
            return as_strided(np.frombuffer(found[0], np.uint8), (size,), writeable=False)
        if len(self._room) < size:
            self._room = np.empty(size, np.uint8)
        segments = [np.frombuffer(found[number], np.uint8) for number in range(len(found))]
        return np.concatenate(segments, out=self._room[:size])
