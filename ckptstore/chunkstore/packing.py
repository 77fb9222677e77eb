"""Encoded chunks on their way into packs, and packs into storage, in the background."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from ckptstore.catalog.records import NewPack
from ckptstore.chunkstore.claims import Claims
from ckptstore.chunkstore.encoding import NewChunk, Piece
from ckptstore.chunkstore.grouping import Advance, wait_all
from ckptstore.chunkstore.locations import location_of
from ckptstore.chunkstore.pace import Pace
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.windows import Item
from ckptstore.errors import changed_meanwhile
from ckptstore.format import packs
from ckptstore.format.buffers import Buffer
from ckptstore.pools import Pool
from ckptstore.storage.base import Storage

_IN_FLIGHT = 2


class Packing:
    """The pack that is being built, and those that are put; of these a few at a time."""

    def __init__(self, storage: Storage, claims: Claims, payloads: Payloads, pace: Pace, advance: Advance) -> None:
        self._storage, self._claims, self._payloads = storage, claims, payloads
        self._pace, self._advance = pace, advance
        self._own: list[NewPack] = []
        self._names: list[str] = []
        self._builder = payloads.pack()
        self._live: list[Item] = []
        self._puts: list[Future[None]] = []
        self._putters = Pool(_IN_FLIGHT, "ckptstore-put")

    def close(self) -> None:
        """End the threads."""
        self._putters.shutdown(cancel_futures=True)

    @property
    def keys(self) -> list[str]:
        """Storage keys of the packs that were put so far, or tried to."""
        return [packs.pack_key(pack.name) for pack in self._own]

    @property
    def size(self) -> int:
        """Bytes of the pack that is being built."""
        return self._builder.size

    @property
    def writes(self) -> bool:
        """Whether a pack is on its way into storage."""
        return any(not put.done() for put in self._puts[-_IN_FLIGHT:])

    def expect(self, size: int) -> None:
        """Reserve names at once for what so many bytes fill."""
        self._reserve(size // packs.TARGET_BYTES)

    def append(self, chunk: NewChunk, live: Piece | None = None) -> str:
        """The name of the pack that the chunk is put into; `live` is what it was made of, if that may change."""
        if self._builder.frames and self._builder.size + len(chunk.payload) > packs.TARGET_BYTES:
            self.put()
        self._reserve(1)
        name = self._names[-1]
        offset = self._builder.next_offset(chunk.payload, chunk.digest, chunk.base)
        payload = self._payloads.seal(name, offset, chunk.codec, chunk.digest, chunk.payload)
        known = self._payloads.checksum(chunk.codec, chunk.digest, chunk.raw_length)
        self._builder.add(chunk.digest, chunk.codec, payload, chunk.raw_length, chunk.base, known)
        if live is not None:
            self._live.append((chunk.digest, live))
        return name

    def put(self) -> None:
        """Put the pack that is being built, and begin another one."""
        builder, self._builder = self._builder, self._payloads.pack()
        live, self._live = self._live, []
        self._advance(0)
        name, frames = self._names.pop(), builder.frames
        parts = builder.finish()
        self._own.append(NewPack(name, builder.size, [location_of(frame, name) for frame in frames]))
        if len(self._puts) >= _IN_FLIGHT:
            self._puts[-_IN_FLIGHT].result()
        self._puts.append(self._putters.submit(self._put, packs.pack_key(name), parts, builder.size, live))

    def finish(self) -> list[NewPack]:
        """All packs, once they are durable."""
        if self._builder.frames:
            self.put()
        wait_all(self._puts)
        return self._own

    def _reserve(self, count: int) -> None:
        missing = count - len(self._names)
        if missing > 0:
            self._names[:0] = self._claims.reserve(missing)

    def _put(self, key: str, parts: Sequence[Buffer], size: int, live: Sequence[Item]) -> None:
        """Raises StateError where what the pack was made of is not what it was: then it holds who knows what."""
        with self._pace.putting(size):
            self._storage.put(key, parts)
        for digest, piece in live:
            if self._payloads.digest.compute(piece.data) != digest:
                raise changed_meanwhile(piece.live)
