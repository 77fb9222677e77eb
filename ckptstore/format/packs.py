"""Packs: one immutable object of many frames, a footer that indexes them, and a tail that finds the footer.

::

    head    64 bytes: magic, zeros
    frame   header, padded to 64 bytes │ payload │ zeros up to the next multiple of 64
    …
    footer  msgpack: one `Frame` a frame
    tail    40 bytes: offset, length and XXH3-64 of the footer, XXH3-64 of these three, magic

A frame's header says everything its footer entry says, so a damaged pack can be salvaged frame by frame. Payloads
begin on multiples of 64 bytes, so raw ones can be mapped. In packs by sectors, large ones begin as far behind a
multiple of 512 as they do in memory, with zeros before their headers: a disk can take those from memory as they lie.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Annotated

import msgspec

from ckptstore.errors import CorruptData
from ckptstore.format.buffers import Buffer, address_of
from ckptstore.format.digests import checksum

PREFIX = "packs/"
ALIGN = 64
SECTOR = 512
"""What most disks want addresses, offsets and lengths to be multiples of."""
LARGE = 1 << 20
"""From this size on, payloads lie to sectors as they do in memory."""
TARGET_BYTES = 64 << 20
"""A pack is closed once it holds this much."""
MOST_ENCODED = 256 << 20
"""A chunk that is larger is stored raw, so that a small frame cannot fill the memory."""

_MOST_READ = 4
"""How many times its size is read of a damaged pack at most, in search of frames."""
_MOST_SHRUNK = 1 << 15  # zstd's densest block: 128 KiB in 4 bytes

_HEAD = b"ckptpack".ljust(ALIGN, b"\0")
_FRAME_MAGIC = b"CKFR"
_FRAME = struct.Struct("<4sBBBxQQQ")
"""Magic, codec, length of digest, length of base digest; raw length, payload length, XXH3-64 of the payload."""
_FRAME_START = re.compile(re.escape(_FRAME_MAGIC) + b".{3}\\0", re.DOTALL)
_TAIL_MAGIC = b"ckptpend"
_TAIL = struct.Struct("<QQQQ8s")
TAIL_BYTES = _TAIL.size
_CHECKSUM_BYTES = 8


_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Digest = Annotated[bytes, msgspec.Meta(max_length=255)]


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One encoded chunk: where its payload lies in the pack and how to decode it."""

    digest: _Digest
    codec: _Byte
    offset: _Count
    length: _Count
    raw_length: _Count
    checksum: _Count
    base: _Digest = b""


_FOOTER = msgspec.msgpack.Decoder(list[Frame])


def pack_key(name: str) -> str:
    """Where a pack lies in storage."""
    return f"{PREFIX}{name[:2]}/{name}.pack"


class PackBuilder:
    """Collects frames in memory, without copying their payloads, into the parts of one pack.

    Args:
        sectors: whether large payloads lie to these as they do in memory.
    """

    def __init__(self, *, sectors: bool) -> None:
        self._sectors = sectors
        self.frames: list[Frame] = []
        self.size = len(_HEAD)
        self._parts: list[Buffer] = [_HEAD]

    def add(
        self, digest: bytes, codec: int, payload: Buffer, raw_length: int, base: bytes = b"", known: int | None = None
    ) -> None:
        """Append a frame; `known` is the payload's checksum, if that is known."""
        sealed = checksum(payload) if known is None else known
        header = _header(digest, codec, len(payload), raw_length, sealed, base)
        offset = self.next_offset(payload, digest, base)
        self.frames.append(Frame(digest, codec, offset, len(payload), raw_length, sealed, base))
        self._append(bytes(offset - len(header) - self.size) + header)
        self._append(payload)
        self._append(bytes(-self.size % ALIGN))

    def next_offset(self, payload: Buffer, digest: bytes, base: bytes = b"") -> int:
        """Where that payload will lie as the next one."""
        offset = self.size + _padded(_FRAME.size + len(digest) + len(base) + _CHECKSUM_BYTES)
        if not self._sectors or len(payload) < LARGE:
            return offset
        address = address_of(payload) or 0
        return offset + ((0 if address % ALIGN else address) - offset) % SECTOR

    def finish(self) -> list[Buffer]:
        """The parts of the whole object, in order."""
        footer = msgspec.msgpack.encode(self.frames)
        where = (self.size, len(footer), checksum(footer))
        self._append(footer)
        self._append(_TAIL.pack(*where, checksum(struct.pack("<QQQ", *where)), _TAIL_MAGIC))
        return self._parts

    def _append(self, part: Buffer) -> None:
        self.size += len(part)
        if part:
            self._parts.append(part)


def footer_range(tail: Buffer, pack_size: int, name: str) -> tuple[int, int]:
    """Offset and length of the footer, from the last `TAIL_BYTES` bytes of a pack. Raises CorruptData."""
    offset, length, _, _ = _tail(tail, name)
    if offset + length + TAIL_BYTES != pack_size:
        raise CorruptData(f"pack {name}: its size of {pack_size} bytes is not what its tail says")
    return offset, length


def read_footer(footer: Buffer, tail: Buffer, name: str) -> list[Frame]:
    """The frames of a pack. Raises CorruptData."""
    end, _, expected, _ = _tail(tail, name)
    if checksum(footer) != expected:
        raise CorruptData(f"pack {name}: its footer's checksum does not fit")
    try:
        frames = _FOOTER.decode(footer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptData(f"pack {name}: its footer does not decode: {error}") from error
    if len({frame.digest for frame in frames}) < len(frames):
        raise CorruptData(f"pack {name}: its footer tells of one chunk twice")
    before = 0
    for frame in frames:
        ends = frame.offset + frame.length
        if frame.offset < before or ends > end or frame.raw_length > _most_raw(frame.length):
            raise CorruptData(f"pack {name}: its footer tells of a frame at {frame.offset} that cannot be")
        before = ends
    return frames


def problems(data: memoryview, name: str) -> Iterator[tuple[Frame | None, str]]:
    """Everything in a whole pack that is not as it was written: the frame it is in, if any, and what is wrong.

    Checks every byte but the meaning of payloads: decoding and digests are for the caller.
    """
    try:
        offset, length = footer_range(data[-TAIL_BYTES:], len(data), name)
        frames = read_footer(data[offset : offset + length], data[-TAIL_BYTES:], name)
    except CorruptData as error:
        yield None, str(error)
        return
    if data[: len(_HEAD)] != _HEAD:
        yield None, f"pack {name}: its first {len(_HEAD)} bytes are damaged"
    end = len(_HEAD)
    for frame in frames:
        payload = data[frame.offset : frame.offset + frame.length]
        header = _header(frame.digest, frame.codec, frame.length, frame.raw_length, frame.checksum, frame.base)
        if len(payload) != frame.length or checksum(payload) != frame.checksum:
            yield frame, f"pack {name}: the payload at {frame.offset} is damaged"
        elif not _follows(data[end : frame.offset], header):
            yield frame, f"pack {name}: the frame header at {end} is damaged"
        end = frame.offset + frame.length
        padding = -end % ALIGN
        if any(data[end : end + padding]):
            yield None, f"pack {name}: the padding at {end} is damaged"
        end += padding
    if end != offset:
        yield None, f"pack {name}: there are {offset - end} bytes between its frames and its footer"


def salvage(data: memoryview) -> Iterator[Frame]:
    """The frames that are whole, one of a digest, found by their magic, whatever else of a pack is damaged or missing.

    Their payloads fit their checksums; whether these are the chunks they say is for the caller. What lies in a payload
    is no frame, and of what only claims to be frames no more is read than takes a time linear in the pack's size.
    """
    at, left, seen = 0, _MOST_READ * len(data), set[bytes]()
    while found := _FRAME_START.search(data, at):
        at = found.start() + 1
        frame = _frame_at(data, found.start())
        if frame is None or frame.length > left:
            continue
        left -= frame.length
        end = frame.offset + frame.length
        if checksum(data[frame.offset : end]) != frame.checksum:
            continue
        at = end
        if frame.digest not in seen:
            seen.add(frame.digest)
            yield frame


def _frame_at(data: memoryview, start: int) -> Frame | None:
    """The frame that a whole header there describes, whatever its payload is."""
    if len(data) < start + _FRAME.size:
        return None
    _, codec, digest_size, base_size, raw_length, length, sealed = _FRAME.unpack_from(data, start)
    names = bytes(data[start + _FRAME.size : start + _FRAME.size + digest_size + base_size])
    digest, base = names[:digest_size], names[digest_size:]
    header = _header(digest, codec, length, raw_length, sealed, base)
    offset = start + len(header)
    if data[start:offset] != header or offset + length > len(data):
        return None
    if raw_length > _most_raw(length):
        return None
    return Frame(digest, codec, offset, length, raw_length, sealed, base)


def _most_raw(length: int) -> int:
    """The most that a payload can stand for; nobody reserves memory for a greater claim."""
    return max(length, min(length * _MOST_SHRUNK, MOST_ENCODED))


def _header(digest: bytes, codec: int, length: int, raw_length: int, sealed: int, base: bytes) -> bytes:
    fixed = _FRAME.pack(_FRAME_MAGIC, codec, len(digest), len(base), raw_length, length, sealed)
    bare = fixed + digest + base
    header = bare + struct.pack("<Q", checksum(bare))
    return header.ljust(_padded(len(header)), b"\0")


def _follows(found: memoryview, header: bytes) -> bool:
    """Whether that is the header, behind less than a sector of zeros."""
    zeros = len(found) - len(header)
    return 0 <= zeros < SECTOR and not any(found[:zeros]) and found[zeros:] == header


def _padded(length: int) -> int:
    """The next multiple of `ALIGN`."""
    return -(-length // ALIGN) * ALIGN


def _tail(tail: Buffer, name: str) -> tuple[int, int, int, bytes]:
    if len(tail) != TAIL_BYTES:
        raise CorruptData(f"pack {name}: it is cut short")
    offset, length, footer_checksum, own, magic = _TAIL.unpack(tail)
    if magic != _TAIL_MAGIC or own != checksum(struct.pack("<QQQ", offset, length, footer_checksum)):
        raise CorruptData(f"pack {name}: its tail is damaged")
    return offset, length, footer_checksum, magic
