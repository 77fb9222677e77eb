"""Choosing among the places where chunks lie: what can be decoded, from as little as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ckptstore.catalog.records import ChunkLocation

DEEPEST = 16
"""What rests on more chunks than this, one below the other, is not found; no writer makes such chains."""

_Ranked = tuple[int, ChunkLocation]


class Places:
    """Every place of some chunks, each with a rank: of places that are as good, the lowest is taken."""

    def __init__(self) -> None:
        self._whole: dict[bytes, _Ranked] = {}
        self._resting: dict[bytes, list[_Ranked]] = defaultdict(list)

    def add(self, rank: int, location: ChunkLocation) -> None:
        """One more place."""
        digest = location.digest
        if location.base:
            self._resting[digest].append((rank, location))
        elif digest not in self._whole or rank < self._whole[digest][0]:
            self._whole[digest] = rank, location

    def bases(self, digests: Iterable[bytes]) -> set[bytes]:
        """All that those of these chunks may rest on which are whole nowhere."""
        resting = (self._resting.get(digest, ()) for digest in digests if digest not in self._whole)
        return {base for places in resting for _, location in places for base in location.bases}

    def closure(
        self, digests: Collection[bytes], within: Collection[bytes] | None = None
    ) -> dict[bytes, ChunkLocation]:
        """The best place of each chunk that can be decoded, and of what it rests on there: `within` these alone."""
        found = self._whole_of(digests)
        if len(found) == len(set(digests)):
            return found
        resting = self._below(set(digests) - found.keys(), within)
        found |= self._whole_of(self.bases(resting))
        for _ in range(DEEPEST):
            fresh = _resolved(resting, found)
            if not fresh:
                break
            found |= fresh
            resting = {digest: places for digest, places in resting.items() if digest not in fresh}
        return _reached(found, digests)

    def _whole_of(self, digests: Iterable[bytes]) -> dict[bytes, ChunkLocation]:
        return {digest: self._whole[digest][1] for digest in digests if digest in self._whole}

    def _below(self, digests: set[bytes], within: Collection[bytes] | None) -> dict[bytes, list[_Ranked]]:
        """The places of chunks that are whole nowhere, and of all such that they may rest on."""
        found: dict[bytes, list[_Ranked]] = {}
        for _ in range(DEEPEST):
            for digest in digests:
                places = self._resting.get(digest, ())
                found[digest] = [
                    place for place in places if within is None or all(base in within for base in place[1].bases)
                ]
            digests = {base for base in self.bases(digests) if base not in found and base not in self._whole}
        return found


def _resolved(
    places: Mapping[bytes, list[_Ranked]], found: Mapping[bytes, ChunkLocation]
) -> dict[bytes, ChunkLocation]:
    """The chunks that rest on nothing but what was found before, so that none ever rests on itself."""
    usable = {
        digest: [place for place in options if all(base in found for base in place[1].bases)]
        for digest, options in places.items()
    }
    return {digest: min(options, key=lambda place: place[0])[1] for digest, options in usable.items() if options}


def _reached(found: Mapping[bytes, ChunkLocation], digests: Iterable[bytes]) -> dict[bytes, ChunkLocation]:
    reached: dict[bytes, ChunkLocation] = {}
    wanted = set(digests)
    while wanted:
        reached |= {digest: found[digest] for digest in wanted if digest in found}
        wanted = {base for digest in wanted if digest in found for base in found[digest].bases} - reached.keys()
    return reached
