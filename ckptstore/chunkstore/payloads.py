"""What lies between a chunk's raw bytes and the payload of its frame: codec, seal and digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptstore.catalog.records import ChunkLocation
from ckptstore.errors import CorruptData
from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs import RAW, Encoded, codec_numbered
from ckptstore.format.digests import Digest
from ckptstore.format.packs import PackBuilder
from ckptstore.format.sealing import Sealer


@dataclass(frozen=True, slots=True)
class Payloads:
    """Of one store: its digest, the sealer when it is encrypted, and whether its packs are by sectors."""

    digest: Digest
    sealer: Sealer | None
    sectors: bool

    def pack(self) -> PackBuilder:
        """A new pack; sectors are of no use to what is sealed, which lies in memory of its own."""
        return PackBuilder(sectors=self.sectors and self.sealer is None)

    def seal(self, pack: str, offset: int, codec: int, digest: bytes, payload: Buffer) -> Buffer:
        """An encoded payload as it is stored there."""
        if self.sealer is None:
            return payload
        return self.sealer.seal(pack, offset, payload, _bound(codec, digest))

    def checksum(self, codec: int, digest: bytes, size: int) -> int | None:
        """Of a stored payload of a chunk, where that need not be computed."""
        plain = codec == RAW.number and self.sealer is None
        return self.digest.checksum(digest, size) if plain else None

    def decode(
        self,
        location: ChunkLocation,
        payload: memoryview,
        out: memoryview | None = None,
        bases: Sequence[memoryview] = (),
        *,
        checked: bool = True,
    ) -> memoryview:
        """The raw bytes of a payload without its seal: in `out` if that is given, in itself where it holds them.

        `bases` are the raw bytes of the chunks that it rests on. Raises CorruptData unless they are the chunk that the
        location says; what only serves to decode another chunk need not be `checked`, since that one is.
        """
        raw = self._decoded(location, payload, out, bases)
        if checked:
            self.check(location, raw)
        return raw

    def decode_with(self, location: ChunkLocation, payload: memoryview, out: memoryview, base: Encoded) -> None:
        """Like `decode`, for a difference whose base is at hand as a payload alone, and rests on nothing."""
        from ckptstore.format.codecs.delta import Delta

        codec_numbered(base.codec).decode(memoryview(base.payload), out)
        Delta().decode_onto(payload, out)
        self.check(location, out)

    def opened(self, location: ChunkLocation, payload: memoryview) -> memoryview:
        """The encoded payload of a stored one. Raises CorruptData when it is not what was sealed there."""
        if self.sealer is None:
            return payload
        bound = _bound(location.codec, location.digest)
        return memoryview(self.sealer.open(location.pack, location.offset, payload, bound))

    def check(self, location: ChunkLocation, raw: memoryview) -> None:
        """Raises CorruptData unless these are the chunk's raw bytes."""
        if self.digest.compute(raw) != location.digest:
            raise CorruptData(f"its bytes do not have the digest {location.digest.hex()}")

    def _decoded(
        self, location: ChunkLocation, payload: memoryview, out: memoryview | None, bases: Sequence[memoryview]
    ) -> memoryview:
        if location.codec != RAW.number or out is not None:
            raw = memoryview(bytearray(location.raw_length)) if out is None else out
            codec_numbered(location.codec).decode(payload, raw, bases)
            return raw
        if len(payload) != location.raw_length:
            raise CorruptData(f"it holds {len(payload)} bytes instead of {location.raw_length}")
        return payload


def _bound(codec: int, digest: bytes) -> bytes:
    return bytes([codec]) + digest
