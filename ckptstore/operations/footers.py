"""What a pack says of itself: its footer, read without the catalog."""

from __future__ import annotations

import re

from ckptstore.catalog.records import NewPack
from ckptstore.chunkstore.locations import location_of
from ckptstore.errors import CorruptData
from ckptstore.format import packs
from ckptstore.storage.base import ObjectInfo, RangeRead, Storage

_NAME = re.compile("[0-9a-f]{32}")


def pack_name(info: ObjectInfo) -> str:
    """The name of the pack that an object is. Raises CorruptData when its key is not that of a pack."""
    name = info.key.rpartition("/")[2].removesuffix(".pack")
    if info.key != packs.pack_key(name) or not _NAME.fullmatch(name):
        raise CorruptData(f"{info.key} is no pack")
    return name


def read_pack(storage: Storage, info: ObjectInfo) -> NewPack:
    """A pack and where its chunks lie. Raises CorruptData, ObjectNotFound."""
    name = pack_name(info)
    if info.size < packs.TAIL_BYTES:
        raise CorruptData(f"{info.key} is cut short")
    tail = _read(storage, info.key, info.size - packs.TAIL_BYTES, packs.TAIL_BYTES)
    offset, length = packs.footer_range(tail, info.size, name)
    frames = packs.read_footer(_read(storage, info.key, offset, length), tail, name)
    return NewPack(name, info.size, [location_of(frame, name) for frame in frames])


def read_any_pack(storage: Storage, info: ObjectInfo) -> NewPack:
    """`read_pack`, and where the footer is damaged, the frames that are whole all the same. Raises as that does."""
    try:
        return read_pack(storage, info)
    except CorruptData:
        name = pack_name(info)
        found = {frame.digest: frame for frame in packs.salvage(memoryview(storage.get(info.key)))}
        if not found:
            raise
        return NewPack(name, info.size, [location_of(frame, name) for frame in found.values()])


def _read(storage: Storage, key: str, offset: int, length: int) -> bytearray:
    out = bytearray(length)
    storage.get_ranges(key, [RangeRead(offset, memoryview(out))])
    return out
