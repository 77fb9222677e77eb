"""Whether a pack is what the catalog says it is: its size, its footer, every byte of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckptstore.catalog.records import ChunkLocation, PackRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import groups
from ckptstore.errors import ObjectNotFound
from ckptstore.format import packs
from ckptstore.format.packs import pack_key
from ckptstore.operations.footers import read_pack
from ckptstore.operations.problem import DAMAGE, Problem
from ckptstore.storage.base import ObjectInfo

_BATCH_BYTES = 16 << 20
_BATCH_CHUNKS = 1024

Check = Callable[[ChunkStore, PackRecord, ObjectInfo], Iterator[Problem]]


def check_missing(chunks: ChunkStore, pack: PackRecord) -> Iterator[Problem]:
    """For a pack that storage does not have."""
    for location in chunks.catalog.pack_chunks(pack.name):
        yield Problem(pack_key(pack.name), "is missing", location.digest)


def check_size(chunks: ChunkStore, pack: PackRecord, info: ObjectInfo) -> Iterator[Problem]:
    """Its length."""
    if info.size != pack.size:
        yield Problem(info.key, f"has {info.size} bytes, the catalog says {pack.size}")


def check_footer(chunks: ChunkStore, pack: PackRecord, info: ObjectInfo) -> Iterator[Problem]:
    """Its length, and what it says of itself."""
    yield from check_size(chunks, pack, info)
    try:
        footer = {chunk.digest: chunk for chunk in read_pack(chunks.storage, info).chunks}
    except DAMAGE as error:
        yield Problem(info.key, str(error))
        return
    for location in chunks.catalog.pack_chunks(pack.name):
        if footer.get(location.digest) != location:
            detail = f"its footer does not have the chunk {location.digest.hex()} where the catalog says"
            yield Problem(info.key, detail, location.digest)


def check_data(chunks: ChunkStore, pack: PackRecord, info: ObjectInfo) -> Iterator[Problem]:
    """Every byte."""
    recorded = {location.digest: location for location in chunks.catalog.pack_chunks(pack.name)}
    try:
        data = memoryview(chunks.storage.get(info.key))
    except DAMAGE as error:
        detail = "is missing" if isinstance(error, ObjectNotFound) else str(error)
        yield from (Problem(info.key, detail, digest) for digest in recorded)
        return
    yield from check_size(chunks, pack, ObjectInfo(info.key, len(data), info.modified))
    damaged = set()
    for frame, detail in packs.problems(data, pack.name):
        damaged.add(frame.digest if frame else b"")
        yield Problem(info.key, detail, frame.digest if frame else b"")
    left = [location for digest, location in recorded.items() if digest not in damaged]
    yield from _check_chunks(chunks, info.key, data, left)


def _check_chunks(chunks: ChunkStore, key: str, data: memoryview, found: Sequence[ChunkLocation]) -> Iterator[Problem]:
    """What they decode to. What rests on chunks of another size, as none is written, is not: these may be large."""
    below = chunks.catalog.locate(sorted({base for location in found for base in location.bases}))
    fitting = []
    for location in found:
        sizes = [below[base].raw_length for base in location.bases if base in below]
        if any(size != location.raw_length for size in sizes):
            yield Problem(key, f"the chunk at {location.offset} rests on one of another size", location.digest)
        elif len(sizes) == len(location.bases):  # otherwise what is not found is reported
            fitting.append(location)
    for some in groups(fitting, _beneath, _BATCH_BYTES, _BATCH_CHUNKS):
        bases = dict(_readable(chunks, sorted({base for location in some for base in location.bases})))
        for location in some:
            if bases.keys() >= set(location.bases):  # otherwise the pack where that lies is reported
                yield from _check_chunk(chunks, key, data, location, [bases[base] for base in location.bases])


def _beneath(location: ChunkLocation) -> int:
    """Bytes of all that a chunk rests on."""
    return len(location.bases) * location.raw_length


def _readable(chunks: ChunkStore, digests: Sequence[bytes]) -> Iterator[tuple[bytes, memoryview]]:
    """Those of the chunks that can be read, and their raw bytes."""
    try:
        yield from zip(digests, chunks.raw(digests) if digests else (), strict=True)
    except DAMAGE:
        if len(digests) > 1:
            for digest in digests:
                yield from _readable(chunks, [digest])


def _check_chunk(
    chunks: ChunkStore, key: str, data: memoryview, location: ChunkLocation, bases: Sequence[memoryview]
) -> Iterator[Problem]:
    try:
        payload = chunks.payloads.opened(location, data[location.offset : location.offset + location.length])
        chunks.payloads.decode(location, payload, bases=bases)
    except DAMAGE as error:
        yield Problem(key, f"the chunk at {location.offset}: {error}", location.digest)
