"""The chunks of one store: a storage, the catalog that judges it, and the settings both follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.catalog.base import Catalog, ChunkLocation
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.reader import DEFAULT_BUDGET, Fetch, fetch
from ckptstore.chunkstore.writer import ChunkWriter
from ckptstore.errors import CorruptData
from ckptstore.format.codecs import codec_numbered
from ckptstore.format.digests import Digest, digest_named
from ckptstore.format.version import StoreConfig
from ckptstore.storage.base import Storage


@dataclass(frozen=True, slots=True)
class ChunkStore:
    """What every operation works on."""

    storage: Storage
    catalog: Catalog
    config: StoreConfig
    digest: Digest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_named(self.config.digest))

    def writer(self, session: str, *, refuse: Exception | None = None, advance: Advance = ignore) -> ChunkWriter:
        """A writer for a session; with `refuse`, that is raised instead of storing the first chunk that is new."""
        return ChunkWriter(self.storage, self.catalog, self.digest, session, refuse, advance)

    def decode(self, location: ChunkLocation, payload: memoryview) -> memoryview:
        """The raw bytes of a chunk. Raises CorruptData when they do not have its digest."""
        raw = memoryview(bytearray(location.raw_length))
        codec_numbered(location.codec).decode(payload, raw)
        if self.digest.compute(raw) != location.digest:
            raise CorruptData(f"its bytes do not have the digest {location.digest.hex()}")
        return raw

    def fetch(self, wishes: Sequence[Fetch], *, budget: int = DEFAULT_BUDGET, advance: Advance = ignore) -> None:
        """Fulfil every wish; see `reader.fetch`."""
        fetch(self.storage, self.catalog, self.digest, wishes, budget, advance)
