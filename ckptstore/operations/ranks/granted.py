"""What a rank has that leaves the catalog to the coordinator: what that granted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptstore.catalog.records import ChunkLocation
from ckptstore.operations.ranks.reports import Grant


class Granted:
    """Stands for claims and for the catalog: names of packs, and the chunks that its own ones may rest on."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._places: dict[bytes, ChunkLocation] = {}

    def take(self, grant: Grant) -> None:
        """From now on this is what there is."""
        self.names += grant.names
        self._places = {place.digest: place for place in grant.places}

    def pin(self, digests: Sequence[bytes]) -> Mapping[bytes, ChunkLocation]:
        """Those that were granted are pinned already."""
        return self._places

    def reserve(self, count: int) -> list[str]:
        """Of the granted ones, which suffice."""
        return [self.names.pop() for _ in range(count)]

    def locate(self, digests: Sequence[bytes]) -> Mapping[bytes, ChunkLocation]:
        """As `pin`."""
        return self._places

    def lost(self) -> Mapping[bytes, object]:
        """None: nothing is granted to rest on for what was lost."""
        return {}
