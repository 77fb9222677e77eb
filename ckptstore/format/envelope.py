"""What surrounds a document in storage: kind, lengths, checksum and compression, and the seal of encrypted stores."""

from __future__ import annotations

import struct

import zstandard

from ckptstore.errors import CorruptData
from ckptstore.format.digests import checksum
from ckptstore.format.sealing import Sealer

_SEALED = b"ckptseal"
_END = b"ckptmend"  # not a carriage return, which some storage strips from the end of what it is sent
_HEAD = struct.Struct("<8sQQQ")
"""Magic, length of the body, length of the decoded body, XXH3-64 of everything else."""

_MOST_SHRUNK = 16
_SMALL = 4 << 20
"""A body longer than this is at least a 16th of what it decodes to, so that a small one cannot fill the memory."""


def wrap(decoded: bytes, magic: bytes) -> bytes:
    """The bytes of a document of the kind that 8 bytes of magic name."""
    body = zstandard.ZstdCompressor(level=3).compress(decoded)
    if len(decoded) > _most_decoded(len(body)):
        body = body.ljust(-(-len(decoded) // _MOST_SHRUNK), b"\0")
    return _head(magic, body, len(decoded)) + body + _END


def unwrap(data: bytes, magic: bytes, name: str) -> bytes:
    """What was wrapped. Raises CorruptData naming the document."""
    if len(data) < _HEAD.size:
        raise CorruptData(f"{name}: it was cut short")
    try:
        found, length, decoded_length, _ = _HEAD.unpack_from(data)
        body = data[_HEAD.size : -len(_END)]
        if found != magic or data[-len(_END) :] != _END or length != len(body):
            raise CorruptData(f"{name}: its head is damaged or it was cut short")
        if data[: _HEAD.size] != _head(magic, body, decoded_length):
            raise CorruptData(f"{name}: its checksum does not fit")
        if zstandard.frame_content_size(body) != decoded_length or decoded_length > _most_decoded(length):
            raise CorruptData(f"{name}: its body is not of the size that its head says")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise CorruptData(f"{name}: {error}") from error


def seal(data: bytes, key: str, sealer: Sealer | None) -> bytes:
    """A document's bytes as a store keeps them under a storage key; those of an encrypted one are sealed."""
    return data if sealer is None else _SEALED + sealer.seal(key, 0, data) + _END


def is_sealed(data: bytes) -> bool:
    """Whether these are the bytes of a document of an encrypted store, as far as that can be told without its key."""
    return data[: len(_SEALED)] == _SEALED and data[-len(_END) :] == _END


def unseal(data: bytes, key: str, sealer: Sealer | None, name: str) -> bytes:
    """The document's own bytes. Raises CorruptData naming the document."""
    if sealer is None:
        return data
    if not is_sealed(data):
        raise CorruptData(f"{name}: its head is damaged or it was cut short")
    try:
        return sealer.open(key, 0, data[len(_SEALED) : -len(_END)])
    except CorruptData as error:
        raise CorruptData(f"{name}: {error}") from None


def _most_decoded(length: int) -> int:
    return max(_SMALL, _MOST_SHRUNK * length)


def _head(magic: bytes, body: bytes, decoded_length: int) -> bytes:
    bare = _HEAD.pack(magic, len(body), decoded_length, 0)
    return _HEAD.pack(magic, len(body), decoded_length, checksum(bare + body))
