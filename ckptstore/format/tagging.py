"""The document of a tag: what it names, so that a catalog that is made anew has it."""

from __future__ import annotations

import re
import uuid

import msgspec

from ckptstore.errors import CorruptData
from ckptstore.format import envelope
from ckptstore.format.sealing import Sealer

PREFIX = "tags/"
_MAGIC = b"ckpttags"
_KEY = re.compile(r"tags/[0-9a-f]{32}\.tag")


class TagDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a run, the id of the commit that it points at, and when it was pointed there."""

    store: str
    run: str
    name: str
    commit: str
    created: float


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TagDocument)


def new_tag_key() -> str:
    """Where a tag's document will lie: a new place whenever it moves, since nothing stored is overwritten."""
    return f"{PREFIX}{uuid.uuid4().hex}.tag"


def is_tag_key(key: str) -> bool:
    """Whether a key looks like those of `new_tag_key`; other files below `tags/` are somebody else's."""
    return _KEY.fullmatch(key) is not None


def encode(tag: TagDocument, key: str, sealer: Sealer | None) -> bytes:
    """The document's bytes as they are stored under a key."""
    return envelope.seal(envelope.wrap(_ENCODER.encode(tag), _MAGIC), key, sealer)


def decode(data: bytes, key: str, sealer: Sealer | None) -> TagDocument:
    """Read and check what was stored under a key. Raises CorruptData naming it."""
    decoded = _opened(data, key, sealer)
    try:
        return _DECODER.decode(decoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"tag document {key}: {error}") from error


def is_damaged(data: bytes, key: str, sealer: Sealer | None) -> bool:
    """Whether it is not as anybody wrote it, whatever that was; or sealed with another key than the store's."""
    if sealer is None and envelope.is_sealed(data):
        return False  # another store's
    try:
        _opened(data, key, sealer)
    except CorruptData:
        return True
    return False


def _opened(data: bytes, key: str, sealer: Sealer | None) -> bytes:
    name = f"tag document {key}"
    return envelope.unwrap(envelope.unseal(data, key, sealer, name), _MAGIC, name)
