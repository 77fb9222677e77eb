"""The seam of a codec."""

from __future__ import annotations

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Codec(Protocol):
    """A lossless encoding of a chunk. Stateless; may be used by several threads at once."""

    number: int
    name: str

    def encode(self, raw: memoryview) -> Buffer:
        """The payload for `raw`; it may share memory with it."""

    def decode(self, payload: memoryview, out: memoryview) -> None:
        """Fill all of `out`. Raises CorruptData when the payload is not the encoding of `len(out)` bytes."""
