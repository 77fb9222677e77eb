"""The seam of a codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ckptstore.format.buffers import Buffer

Level = Literal["none", "fast", "auto", "best"]
Effort = Level | Literal["light"]


@dataclass(frozen=True, slots=True)
class Form:
    """What the bytes of a chunk are: numbers of `width` bytes each, little-endian; floats or not."""

    width: int = 1
    floating: bool = False


BYTES = Form()
PLANES, DELTA = 2, 3
"""Numbers of codecs that others know of."""

READ = 0.5
"""What reading a byte takes that is stored as it is, to one that is put together with others, beside decoding."""


class Encoded(NamedTuple):
    """A chunk's payload, and the number of the codec that made it.

    `alone` is what reading a raw byte takes without any base, on the scale of `READ`, and `added` what the base adds.
    """

    codec: int
    payload: Buffer
    alone: float = READ
    added: float = 0.0

    @property
    def uses_base(self) -> bool:
        """Whether decoding needs the base."""
        return self.codec == DELTA


class NoGain(Exception):
    """A chunk is not what a codec expects; nothing is wrong with it."""


class Codec(Protocol):
    """A lossless encoding of a chunk. Stateless; may be used by several threads at once.

    `bases` are the raw bytes of the chunks that the encoding relies on, the same ones both ways.
    """

    number: int
    name: str

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> Buffer:
        """The payload for `raw`; it may share memory with it. Raises NoGain when the codec is not for such bytes."""

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Fill all of `out`. Raises CorruptData when the payload is not the encoding of `len(out)` bytes."""
