"""Where a frame of a pack lies, as the catalog records it."""

from __future__ import annotations

from ckptstore.catalog.records import ChunkLocation
from ckptstore.format.packs import Frame


def location_of(frame: Frame, pack: str) -> ChunkLocation:
    """That of a frame in the pack of that name."""
    return ChunkLocation(frame.digest, pack, frame.offset, frame.length, frame.raw_length, frame.codec, frame.base)
