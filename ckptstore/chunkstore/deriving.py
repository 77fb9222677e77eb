"""Chunks that were made of others, in a way that a codec knows: finding these, and encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.encoding import Encoder, Made, NewChunk, Piece, unwritten
from ckptstore.chunkstore.needs import Way
from ckptstore.format.codecs import Effort
from ckptstore.format.codecs.base import NoGain
from ckptstore.format.manifest import split_digests

_LONGEST = 2
"""How many times in a row a chunk may be what was made of the one before it: readers decode all of them."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a chunk may be encoded.

    Attributes:
        made: the codec, and what the chunk was made of.
        newer: digests and bytes of the chunks of this commit that it was made of.
        below: all that those of the store rest on, pinned; these too.
    """

    made: Made
    newer: Mapping[bytes, memoryview]
    below: Sequence[ChunkLocation]

    def encode(self, digest: bytes, piece: Piece, older: Mapping[bytes, memoryview]) -> NewChunk | None:
        """The chunk, when its codec finds it to be what it should be; `older` has the bytes of what is not damaged."""
        if not all(base in older for base in self.made.older):
            return None
        try:
            bases = [*(older[base] for base in self.made.older), *self.newer.values()]
            payload = self.made.codec.encode(piece.data, piece.form, bases)
        except NoGain:
            return None
        rests_on = b"".join([*self.made.older, *self.newer])
        return NewChunk(digest, self.made.codec.number, payload, len(piece.data), rests_on, self.below)


class Pile:
    """New chunks of a store that are read on a `way`, each on all that it rests on."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._under: dict[bytes, dict[bytes, ChunkLocation]] = {}

    def heavy(self, made: Iterable[NewChunk], near: Mapping[bytes, ChunkLocation]) -> set[bytes]:
        """Those of more chunks that weigh too much on their readers: they shall rest on what is `near`, or nothing."""
        return {chunk.digest for chunk in made if not self._bears(chunk, near)}

    def _bears(self, chunk: NewChunk, near: Mapping[bytes, ChunkLocation]) -> bool:
        digest, size = chunk.digest, chunk.raw_length
        under = {one.digest: one for one in chunk.below}
        for base in split_digests(chunk.base, len(digest)):
            under |= self._under.get(base, {})
        place = ChunkLocation(digest, "", 0, len(chunk.payload), size, chunk.codec)
        light = not under or self._way.is_light(place, under.values())
        if not light:
            place = unwritten(digest, size, size)
            under = {near[digest].digest: near[digest]} if digest in near else {}
        self._under[digest] = under | {digest: place}
        return light


def derivations(
    fresh: Mapping[bytes, Piece], pin: Callable[[Sequence[bytes]], Mapping[bytes, ChunkLocation]], way: Way
) -> dict[bytes, Derivation]:
    """Of those new chunks that were made of others. These are of the store, or stand before them among the new ones.

    Left out are those that would weigh too much on their readers, however small they become.
    """
    told = {digest: piece.made() for digest, piece in fresh.items() if piece.made is not None}
    made = {digest: found for digest, found in told.items() if found is not None}
    if not made:
        return {}
    pinned = pin(list({base for found in made.values() for base in found.older}))
    found = {digest: _derivation(digest, each, fresh, pinned) for digest, each in made.items()}
    return {
        digest: each
        for digest, each in found.items()
        if each is not None and way.is_light(unwritten(digest, len(fresh[digest].data), 0), each.below)
    }


def encode(
    group: Sequence[tuple[bytes, Piece]],
    encoder: Encoder,
    effort: Effort,
    near: Mapping[bytes, ChunkLocation],
    derived: Mapping[bytes, Derivation],
) -> list[NewChunk]:
    """Each chunk as what it was made of, or else as the encoder does it."""
    found = {digest: derived[digest] for digest, _ in group if digest in derived}
    older = encoder.read({base for each in found.values() for base in each.made.older})
    known = {digest: found[digest].encode(digest, piece, older) for digest, piece in group if digest in found}
    others = [(digest, piece) for digest, piece in group if known.get(digest) is None]
    rest = iter(encoder.encode(others, effort, near))
    return [known.get(digest) or next(rest) for digest, _ in group]


def _derivation(
    digest: bytes, made: Made, fresh: Mapping[bytes, Piece], pinned: Mapping[bytes, ChunkLocation]
) -> Derivation | None:
    newer = fresh[digest].before[-made.newer :]
    names = {*made.older, *newer}
    if digest in names or len(names) < len(made.older) + made.newer:
        return None  # chunks that are alike, such as zeros
    if not all(name in fresh for name in newer) or not all(name in pinned for name in made.older):
        return None
    if _steps(made.older[0], pinned) >= _LONGEST:
        return None
    return Derivation(made, {name: fresh[name].data for name in newer}, _below(made.older, pinned))


def _below(digests: Iterable[bytes], pinned: Mapping[bytes, ChunkLocation]) -> list[ChunkLocation]:
    found: dict[bytes, ChunkLocation] = {}
    wanted = set(digests)
    while wanted:
        found |= {digest: pinned[digest] for digest in wanted}
        wanted = {base for digest in wanted for base in pinned[digest].bases} - found.keys()
    return list(found.values())


def _steps(digest: bytes, pinned: Mapping[bytes, ChunkLocation]) -> int:
    """How many times in a row a chunk was made of what it was before; a difference is none of them."""
    count = 0
    while len(pinned[digest].bases) > 1:
        count, digest = count + 1, pinned[digest].bases[0]
    return count
