"""Where good copies of chunks may still be: in damaged packs themselves, and in another store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.locations import location_of
from ckptstore.errors import InvalidArgument
from ckptstore.format.packs import pack_key, salvage
from ckptstore.operations.problem import DAMAGE

Found = tuple[bytes, memoryview]

_PUSH_BACK = "repair without it, and push the commits back from there"


def from_pack(chunks: ChunkStore, pack: str, wanted: set[bytes]) -> Iterator[Found]:
    """Those of the chunks that are whole in what is left of a pack, found by the magic of their frames."""
    try:
        data = memoryview(chunks.storage.get(pack_key(pack)))
    except DAMAGE:
        return
    places = {frame.digest: location_of(frame, pack) for frame in salvage(data)}
    for digest in wanted & places.keys():
        try:
            bases = [_base(chunks, places, data, base) for base in places[digest].bases]
            yield digest, _decoded(chunks, places[digest], data, bases)
        except DAMAGE:
            continue


def from_store(source: ChunkStore, wanted: set[bytes]) -> Iterator[Found]:
    """Those of the chunks that another store has and can read."""
    for digest in source.catalog.locate(sorted(wanted)).keys() & wanted:
        try:
            yield digest, source.raw([digest])[0]
        except DAMAGE:
            continue


def check_source(chunks: ChunkStore, source: ChunkStore) -> None:
    """Raises InvalidArgument when another store's chunks go by other names."""
    sealed = chunks.sealer is not None or source.sealer is not None
    if sealed and source.config.id != chunks.config.id:
        problem = f"{source.storage.url} is no copy of {chunks.storage.url}, and only a copy has its key"
        raise InvalidArgument(f"{problem}: {_PUSH_BACK}")
    if source.config.digest != chunks.config.digest:
        problem = f"{source.storage.url} uses {source.config.digest}, and {chunks.storage.url} {chunks.config.digest}"
        raise InvalidArgument(f"{problem}, so that it knows chunks by other names: {_PUSH_BACK}")


def _base(chunks: ChunkStore, places: Mapping[bytes, ChunkLocation], data: memoryview, digest: bytes) -> memoryview:
    """What another chunk rests on: from this pack if it is whole there, or else from the store."""
    if digest in places and not places[digest].base:
        return _decoded(chunks, places[digest], data, ())
    return chunks.raw([digest])[0]


def _decoded(chunks: ChunkStore, location: ChunkLocation, data: memoryview, bases: Sequence[memoryview]) -> memoryview:
    payload = chunks.payloads.opened(location, data[location.offset : location.offset + location.length])
    return chunks.payloads.decode(location, payload, bases=bases)
