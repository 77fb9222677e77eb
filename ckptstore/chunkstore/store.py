"""The chunks of one store: a storage, the catalog that judges it, and the settings both follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.catalog.base import Catalog
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.reader import DEFAULT_BUDGET, Fetch, fetch
from ckptstore.chunkstore.writer import ChunkWriter
from ckptstore.format import document
from ckptstore.format.digests import Digest, digest_named
from ckptstore.format.document import Document
from ckptstore.format.sealing import Sealer
from ckptstore.format.version import StoreConfig
from ckptstore.storage.base import Storage


@dataclass(frozen=True, slots=True)
class ChunkStore:
    """What every operation works on; `sealer` is there when the store is encrypted."""

    storage: Storage
    catalog: Catalog
    config: StoreConfig
    sealer: Sealer | None = None
    payloads: Payloads = field(init=False)

    def __post_init__(self) -> None:
        key = None if self.sealer is None else self.sealer.derive("digests")
        object.__setattr__(self, "payloads", Payloads(digest_named(self.config.digest, key), self.sealer))

    @property
    def digest(self) -> Digest:
        """How chunks and manifests are named."""
        return self.payloads.digest

    def writer(self, session: str, *, refuse: Exception | None = None, advance: Advance = ignore) -> ChunkWriter:
        """A writer for a session; with `refuse`, that is raised instead of storing the first chunk that is new."""
        return ChunkWriter(self.storage, self.catalog, self.payloads, session, refuse, advance)

    def fetch(self, wishes: Sequence[Fetch], *, budget: int = DEFAULT_BUDGET, advance: Advance = ignore) -> None:
        """Fulfil every wish; see `reader.fetch`."""
        fetch(self.storage, self.catalog, self.payloads, wishes, budget, advance)

    def encode_document(self, written: Document, key: str) -> bytes:
        """The bytes of a manifest document as they are stored under a key."""
        data = document.encode(written)
        return data if self.sealer is None else document.seal(data, key, self.sealer)

    def decode_document(self, data: bytes, key: str) -> Document:
        """The manifest document that was stored under a key. Raises CorruptData."""
        return document.decode(data if self.sealer is None else document.unseal(data, key, self.sealer), key)
