"""What a writer of chunks asks of whoever keeps the catalog."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import ChunkLocation


class Claims(Protocol):
    """Claims to chunks and packs that gc respects."""

    def pin(self, digests: Sequence[bytes]) -> Mapping[bytes, ChunkLocation]:
        """See `Catalog.pin`."""

    def reserve(self, count: int) -> list[str]:
        """Names of so many new packs, recorded as pending."""


@dataclass(frozen=True, slots=True)
class SessionClaims:
    """Those of a session of the catalog."""

    catalog: Catalog
    session: str

    def pin(self, digests: Sequence[bytes]) -> Mapping[bytes, ChunkLocation]:
        return self.catalog.pin(self.session, digests)

    def reserve(self, count: int) -> list[str]:
        names = [uuid.uuid4().hex for _ in range(count)]
        self.catalog.reserve(self.session, names)
        return names
