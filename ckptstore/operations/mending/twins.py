"""Chunks that lie whole in more than one pack, of which some copies may be damaged.

Repair leaves a damaged pack in storage beside the one that healed it. Neither names nor times of packs tell them
apart, since packs are rewritten and stores are copied; so these chunks are read, which are few, if there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ckptstore.catalog.records import ChunkLocation, NewPack
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import groups
from ckptstore.format.packs import pack_key
from ckptstore.operations.problem import DAMAGE
from ckptstore.storage.base import RangeRead

_BATCH_BYTES = 16 << 20
_BATCH_CHUNKS = 1024


def twins(packs: Iterable[NewPack]) -> set[bytes]:
    """The digests of chunks that are whole in more than one of the packs."""
    counts = Counter(chunk.digest for pack in packs for chunk in pack.chunks if not chunk.base)
    return {digest for digest, count in counts.items() if count > 1}


def damaged_copies(chunks: ChunkStore, pack: NewPack, digests: set[bytes]) -> set[bytes]:
    """Which of these chunks are whole in the pack, but not what was written."""
    copies = [chunk for chunk in pack.chunks if not chunk.base and chunk.digest in digests]
    batches = groups(copies, lambda chunk: chunk.length, _BATCH_BYTES, _BATCH_CHUNKS)
    good = {digest for some in batches for digest in _readable(chunks, some)}
    return {chunk.digest for chunk in copies} - good


def without_damaged(packs: Sequence[NewPack], damaged: Sequence[set[bytes]]) -> dict[str, NewPack]:
    """The packs by their names, without damaged copies of what is good in another one.

    Those with such copies come last, so that nothing is taken from them that lies elsewhere.
    """
    bad = Counter(digest for digests in damaged for digest in digests)
    held = Counter(chunk.digest for pack in packs for chunk in pack.chunks if not chunk.base)
    hopeless = {digest for digest, count in bad.items() if count == held[digest]}
    found = {}
    for pack, digests in sorted(zip(packs, damaged, strict=True), key=lambda item: bool(item[1])):
        left = [chunk for chunk in pack.chunks if chunk.base or chunk.digest not in digests - hopeless]
        found[pack.name] = replace(pack, chunks=left)
    return found


def _readable(chunks: ChunkStore, copies: Sequence[ChunkLocation]) -> Iterator[bytes]:
    """Read at once; one by one when that fails."""
    stored = [memoryview(bytearray(chunk.length)) for chunk in copies]
    reads = [RangeRead(chunk.offset, out) for chunk, out in zip(copies, stored, strict=True)]
    try:
        chunks.storage.get_ranges(pack_key(copies[0].pack), reads)
    except DAMAGE:
        for chunk in copies if len(copies) > 1 else ():
            yield from _readable(chunks, [chunk])
        return
    yield from (chunk.digest for chunk, data in zip(copies, stored, strict=True) if _is_good(chunks, chunk, data))


def _is_good(chunks: ChunkStore, chunk: ChunkLocation, stored: memoryview) -> bool:
    try:
        chunks.payloads.decode(chunk, chunks.payloads.opened(chunk, stored))
    except DAMAGE:
        return False
    return True
