"""`ckptstore.json`: what a store is, and who may touch it. Written once."""

from __future__ import annotations

import msgspec

from ckptstore.errors import NotAStore, StoreTooNew
from ckptstore.format.digests import checksum
from ckptstore.format.grid import Division

KEY = "ckptstore.json"
FORMAT = 1
ENCRYPTION = "encryption"
DELTAS = "deltas"
"""Chunks may rest on others, which gc must spare."""
HALVES = "halves"
"""New tensors are divided at halves of their rows: see `Division`."""
SECTORS = "sectors"
"""Large payloads lie to sectors as in memory: see `packs`."""
FEATURES: frozenset[str] = frozenset({DELTAS, ENCRYPTION, HALVES, SECTORS})
"""Features that this version understands. A store that requires another is refused before its data is touched."""

MIB = 1 << 20
CHUNK_BYTES = (4096, 1 << 30)
"""The least and the most that `chunk_bytes` of a store can be."""


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store.

    Attributes:
        format: number of the format; a newer one is refused.
        id: random 32-hex name of the store; a copy keeps it.
        digest: name of the digest function.
        chunk_bytes: most bytes of a chunk.
        created: seconds since 1970.
        requires_read, requires_write, requires_gc: features needed to do each.
        checksum: XXH3-64 of the other fields as JSON.
    """

    format: int
    id: str
    digest: str
    chunk_bytes: int
    created: float
    requires_read: tuple[str, ...] = ()
    requires_write: tuple[str, ...] = ()
    requires_gc: tuple[str, ...] = ()
    checksum: str = ""

    @property
    def division(self) -> Division:
        """How writers divide arrays."""
        return Division(self.chunk_bytes, HALVES in self.requires_write)


class _Format(msgspec.Struct):
    format: int


def encode(config: StoreConfig) -> bytes:
    """The file's bytes: indented JSON."""
    sealed = msgspec.structs.replace(config, checksum=_seal(config))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=2) + b"\n"


def decode(data: bytes, place: str) -> StoreConfig:
    """Read and check the file. Raises NotAStore, StoreTooNew."""
    try:
        number = msgspec.json.decode(data, type=_Format).format
        if number > FORMAT:
            raise StoreTooNew(f"{place} has format {number}, this ckptstore reads up to {FORMAT}: upgrade ckptstore")
        config = msgspec.json.decode(data, type=StoreConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"{place}/{KEY} is not readable as a store's settings: {error}"
        raise NotAStore(f"{problem}; restore the file from a copy") from None
    if config.checksum != _seal(config):
        raise NotAStore(f"{place}/{KEY} was altered: its checksum does not fit; restore the file from a copy")
    least, most = CHUNK_BYTES
    if config.format < 1 or not least <= config.chunk_bytes <= most:
        raise NotAStore(f"{place}/{KEY} has settings that no ckptstore writes; restore the file from a copy")
    return config


def check_features(required: tuple[str, ...], verb: str, place: str) -> None:
    """Raises StoreTooNew when a required feature is not known here."""
    unknown = sorted(set(required) - FEATURES)
    if unknown:
        raise StoreTooNew(f"to {verb} {place} needs {', '.join(unknown)}, unknown here: upgrade ckptstore")


def _seal(config: StoreConfig) -> str:
    return f"{checksum(msgspec.json.encode(msgspec.structs.replace(config, checksum=''))):016x}"
