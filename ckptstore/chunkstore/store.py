"""The chunks of one store: a storage, the catalog that judges it, and the settings both follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptstore.catalog.base import Catalog
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.reader import DEFAULT_BUDGET, Fetch, fetch
from ckptstore.chunkstore.writer import ChunkWriter
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

    def fetch(self, wishes: Sequence[Fetch], *, budget: int = DEFAULT_BUDGET, advance: Advance = ignore) -> None:
        """Fulfil every wish; see `reader.fetch`."""
        fetch(self.storage, self.catalog, self.digest, wishes, budget, advance)
