"""One plane of bytes, as small as it gets at the speed of a disk: as it is, one byte for all, or a zstd frame.

Bytes of trained floats have few values and no repetitions, so what pays is zstd's Huffman coding and not its search for
matches: a tiny hash table and long matches code them 2.5 times as fast as level 1 does, and smaller. `binding` can skip
most of the search, where nothing repeats itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import zstandard

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.words import Plane

SCARCE = 0.98
"""What saves less is not worth the time of decoding."""
PARAMETERS = {
    "compression_level": 1,
    "strategy": zstandard.STRATEGY_FAST,
    "hash_log": 6,
    "chain_log": 6,
    "min_match": 7,
    "search_log": 1,
}
"""Zstd's."""


class PlaneCoder:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(**PARAMETERS))

    def encode(self, plane: Plane) -> Plane:
        """The smallest of the three; it may share memory with the plane."""
        if len(plane) and plane[0] == plane[-1] and (plane[0] == plane).all():
            return plane[:1]
        coded = self.frame(plane)
        return coded if len(coded) < SCARCE * len(plane) else plane

    def frame(self, plane: Plane) -> Plane:
        """What zstd makes of a plane."""
        return np.frombuffer(self._zstd.compress(plane.data), np.uint8)


class Coders(NamedTuple):
    """What codes most planes, and what codes those in which something repeats itself; they may be the same."""

    usual: PlaneCoder
    searching: PlaneCoder


class PlaneDecoder:
    """The inverse. Not for several threads at once."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor()

    def decode(self, frame: Plane, size: int) -> Plane:
        """What a frame holds. Raises CorruptData unless these are so many bytes."""
        try:
            if zstandard.frame_content_size(frame.data) != size:
                raise CorruptData(f"a plane does not hold the {size} bytes that it stands for")
            return np.frombuffer(self._zstd.decompress(frame.data, allow_extra_data=False), np.uint8)
        except (zstandard.ZstdError, ValueError) as error:
            raise CorruptData(f"a plane does not decode: {error}") from error
