"""Where good copies of chunks may still be: in damaged packs themselves, and in another store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptstore.catalog.base import ChunkLocation
from ckptstore.chunkstore import ChunkStore, Fetch
from ckptstore.errors import CkptStoreError, CorruptData, InvalidArgument, ObjectNotFound
from ckptstore.format.packs import pack_key, salvage
from ckptstore.operations.footers import location_of

Found = tuple[bytes, memoryview]


def from_pack(chunks: ChunkStore, pack: str, wanted: set[bytes]) -> Iterator[Found]:
    """Those of the chunks that are whole in what is left of a pack, found by the magic of their frames."""
    try:
        data = memoryview(chunks.storage.get(pack_key(pack)))
    except ObjectNotFound:
        return
    places = {frame.digest: location_of(frame, pack) for frame in salvage(data)}
    for digest in wanted & places.keys():
        try:
            yield digest, _decoded(chunks, places, data, digest)
        except (CkptStoreError, RecursionError):
            continue


def from_store(source: ChunkStore, wanted: Iterable[bytes]) -> Iterator[Found]:
    """Those of the chunks that another store has and can read."""
    for digest, location in source.catalog.locate(sorted(wanted)).items():
        raw = memoryview(bytearray(location.raw_length))
        try:
            source.fetch([Fetch(digest, len(raw), "a copy", out=raw)])
        except CorruptData:
            continue
        yield digest, raw


def check_source(chunks: ChunkStore, source: ChunkStore) -> None:
    """Raises InvalidArgument when another store's chunks go by other names."""
    sealed = chunks.sealer is not None or source.sealer is not None
    if sealed and source.config.id != chunks.config.id:
        raise InvalidArgument(f"{source.storage.url} is no copy of {chunks.storage.url}, and only a copy has its key")
    if source.config.digest != chunks.config.digest:
        told = f"{source.storage.url} uses {source.config.digest}, and {chunks.storage.url} {chunks.config.digest}"
        raise InvalidArgument(f"{told}: only a store of the same digest can help out")


def _decoded(chunks: ChunkStore, places: Mapping[bytes, ChunkLocation], data: memoryview, digest: bytes) -> memoryview:
    """A chunk's raw bytes, and before them those of what it rests on: from this pack, or else from the store."""
    location = places.get(digest)
    if location is None or location.raw_length > chunks.config.chunk_bytes:
        return chunks.raw([digest])[0]
    bases = [_decoded(chunks, places, data, base) for base in location.bases]
    payload = chunks.payloads.opened(location, data[location.offset : location.offset + location.length])
    return chunks.payloads.decode(location, payload, bases=bases)
