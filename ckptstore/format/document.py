"""The manifest document: one commit, self-contained, so that a lost catalog can be rebuilt from storage alone."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

import msgspec

from ckptstore.errors import CorruptData
from ckptstore.format import envelope
from ckptstore.format.digests import checksum
from ckptstore.format.manifest import Manifest

PREFIX = "manifests/"
_MAGIC = b"ckptmanf"
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
    return f"{PREFIX}{_folder(run)}/{step:012d}.{commit}.manifest"


def is_key_of(key: str, run: str, step: int, commit: str) -> bool:
    """Whether it is `document_key`'s, or as that was when it left capitals as they are."""
    name = f"{step:012d}.{commit}.manifest"
    return key in {f"{PREFIX}{_folder(run, spared)}/{name}" for spared in ("", string.ascii_uppercase)}


def is_document_key(key: str) -> bool:
    """Whether a key looks like those of `document_key`; other files below `manifests/` are somebody else's."""
    return _KEY.fullmatch(key) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    """Canonical bytes of a manifest: the same state gives the same bytes."""
    return _ENCODER.encode(manifest)


def encode(document: Document) -> bytes:
    """The document's bytes."""
    return envelope.wrap(_ENCODER.encode(document), _MAGIC)


def decode(data: bytes, key: str) -> Document:
    """Read and check a document. Raises CorruptData naming it."""
    decoded = envelope.unwrap(data, _MAGIC, f"manifest document {key}")
    try:
        return _DECODER.decode(decoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"manifest document {key}: {error}") from error


def _folder(run: str, spared: str = "") -> str:
    """A folder's name for a run: short enough for every file system, never "." or "..", another one for each run, also
    where capitals count as small letters.
    """
    plain = string.ascii_lowercase + string.digits + "-_." + spared
    safe = "".join(c if c in plain else f"%{ord(c):X}%" for c in run)
    safe = f"%2E%{safe[1:]}" if safe.startswith(".") else safe
    if len(safe) <= _MOST_FOLDER:
        return safe
    return f"{safe[:_MOST_FOLDER]}%{checksum(run.encode()):016x}%"
