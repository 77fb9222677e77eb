"""The manifest document: one commit, self-contained, so that a lost catalog can be rebuilt from storage alone."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import zstandard

from ckptstore.errors import CorruptData
from ckptstore.format.digests import checksum
from ckptstore.format.manifest import Manifest
from ckptstore.format.sealing import Sealer

_MAGIC = b"ckptmanf"
_SEALED = b"ckptseal"
_END = b"ckptmend"  # not a carriage return, which some storage strips from the end of what it is sent
_HEAD = struct.Struct("<8sQQQ")
"""Magic, length of the body, length of the decoded body, XXH3-64 of everything else."""

_MOST_SHRUNK = 16
_SMALL = 4 << 20
"""A body longer than this is at least a 16th of what it decodes to, so that a small one cannot fill the memory."""
_MOST_FOLDER = 100
_KEY = re.compile(r"manifests/[^/]+/\d{12,19}\.[0-9a-f]{32}\.manifest")


class Origin(msgspec.Struct, frozen=True):
    """The commit that another one, in another store or run, is a copy of: its id, and when it was made."""

    id: str
    created: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a commit is: its address, metadata and manifest, and the names of the packs that hold its chunks.

    `bases` holds, one after the other, the digests of the chunks that those of the manifest rest on. `created` is when
    the document was; `origin` is there if the commit is a copy.
    """

    store: str
    id: str
    run: str
    step: int
    parent: str | None
    created: float
    metadata: Mapping[str, Any]
    content: bytes
    packs: tuple[str, ...]
    manifest: Manifest
    bases: bytes = b""
    origin: Origin | None = None

    @property
    def original(self) -> Origin:
        """The commit as it was made first: itself, unless it is a copy."""
        return self.origin or Origin(self.id, self.created)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Document)


def document_key(run: str, step: int, commit: str) -> str:
    """Where a commit's document lies. The name holds the commit's id, so a step made anew never meets an old one."""
    return f"manifests/{_folder(run)}/{step:012d}.{commit}.manifest"


def is_document_key(key: str) -> bool:
    """Whether a key looks like those of `document_key`; other files below `manifests/` are somebody else's."""
    return _KEY.fullmatch(key) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    """Canonical bytes of a manifest: the same state gives the same bytes."""
    return _ENCODER.encode(manifest)


def encode(document: Document) -> bytes:
    """The document's bytes."""
    decoded = _ENCODER.encode(document)
    body = zstandard.ZstdCompressor(level=3).compress(decoded)
    if len(decoded) > _most_decoded(len(body)):
        body = body.ljust(-(-len(decoded) // _MOST_SHRUNK), b"\0")
    return _head(body, len(decoded)) + body + _END


def seal(data: bytes, key: str, sealer: Sealer) -> bytes:
    """The bytes of a document as an encrypted store keeps them under a storage key."""
    return _SEALED + sealer.seal(key, 0, data) + _END


def unseal(data: bytes, key: str, sealer: Sealer) -> bytes:
    """The document's own bytes. Raises CorruptData."""
    if data[: len(_SEALED)] != _SEALED or data[-len(_END) :] != _END:
        raise CorruptData(f"manifest document {key}: its head is damaged or it was cut short")
    try:
        return sealer.open(key, 0, data[len(_SEALED) : -len(_END)])
    except CorruptData as error:
        raise CorruptData(f"manifest document {key}: {error}") from None


def decode(data: bytes, name: str) -> Document:
    """Read and check a document. Raises CorruptData naming it."""
    try:
        magic, length, decoded_length, _ = _HEAD.unpack_from(data)
        body = data[_HEAD.size : -len(_END)]
        if magic != _MAGIC or data[-len(_END) :] != _END or length != len(body):
            raise CorruptData(f"manifest document {name}: its head is damaged or it was cut short")
        if data[: _HEAD.size] != _head(body, decoded_length):
            raise CorruptData(f"manifest document {name}: its checksum does not fit")
        if zstandard.frame_content_size(body) != decoded_length or decoded_length > _most_decoded(length):
            raise CorruptData(f"manifest document {name}: its body is not of the size that its head says")
        decoded = zstandard.ZstdDecompressor().decompress(body)
        return _DECODER.decode(decoded)
    except (struct.error, zstandard.ZstdError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"manifest document {name}: {error}") from error


def _most_decoded(length: int) -> int:
    return max(_SMALL, _MOST_SHRUNK * length)


def _folder(run: str) -> str:
    """A folder's name for a run: short enough for every file system, never "." or "..", another one for each run."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else f"%{ord(c):X}%" for c in run)
    safe = f"%2E%{safe[1:]}" if safe.startswith(".") else safe
    if len(safe) <= _MOST_FOLDER:
        return safe
    return f"{safe[:_MOST_FOLDER]}%{checksum(run.encode()):016x}%"


def _head(body: bytes, decoded_length: int) -> bytes:
    bare = _HEAD.pack(_MAGIC, len(body), decoded_length, 0)
    return _HEAD.pack(_MAGIC, len(body), decoded_length, checksum(bare + body))
