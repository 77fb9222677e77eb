"""Zstandard, level 1: on checkpoint bytes higher levels are slower and hardly smaller."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import zstandard

from ckptstore.errors import CorruptData
from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.base import BYTES, Form
from ckptstore.format.codecs.pool import Pool

_LEVEL = 1
_SAMPLE = 8192
_ALIGNED = 8  # a sample is whole numbers
_COMPRESSORS = Pool(partial(zstandard.ZstdCompressor, level=_LEVEL))
"""Making one takes half as long as compressing a sample. Those that decompress would hold a frame's window."""


class Zstd:
    """One zstd frame with its content size."""

    number = 1
    name = "zstd"

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> bytes:
        """Compress."""
        return _compressed(raw)

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Decompress straight into `out`; never writes past it, whatever the payload claims."""
        try:
            with zstandard.ZstdDecompressor().stream_reader(payload) as reader:
                filled = 0
                while filled < len(out) and (count := reader.readinto(out[filled:])):
                    filled += count
                whole = filled == len(out) and not reader.read(1)
        except zstandard.ZstdError as error:
            raise CorruptData(f"a zstd payload does not decode: {error}") from error
        if not whole:
            raise CorruptData(f"a zstd payload does not hold the {len(out)} bytes it stands for")

    @staticmethod
    def sample(raw: memoryview) -> bytes:
        """Long stretches of the chunk's middle and end, since what repeats itself may do so far apart."""
        middle, end = (start - start % _ALIGNED for start in (len(raw) // 2, len(raw) - _SAMPLE))
        if middle + _SAMPLE > end:  # what overlaps would seem to repeat itself
            return bytes(raw[-2 * _SAMPLE :])
        return bytes(raw[middle : middle + _SAMPLE]) + bytes(raw[end : end + _SAMPLE])

    @staticmethod
    def share(sample: bytes) -> float:
        """The size to expect, of the raw one."""
        return len(_compressed(sample)) / len(sample)


def _compressed(raw: Buffer) -> bytes:
    with _COMPRESSORS.borrowed() as context:
        return context.compress(raw)
