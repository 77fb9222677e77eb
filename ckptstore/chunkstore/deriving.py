"""Chunks that were made of others, in a way that a codec knows: finding these, and encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.encoding import Encoder, Made, NewChunk, Piece, unwritten
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.reliance import HALF, Reliance
from ckptstore.format.codecs import Effort, differs_little
from ckptstore.format.codecs.base import NoGain
from ckptstore.format.manifest import split_digests

_SMALLEST = 1 << 14
"""Computing smaller chunks would cost their readers more than it saves."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a chunk may be encoded.

    Attributes:
        made: the codec, and what the chunk was made of.
        newer: digests and bytes of the chunks of this commit that it was made of.
        below: all that those of the store rest on, pinned; these too.
        rests: whether the older chunk was computed itself: this one is not, or readers would have to compute both.
    """

    made: Made
    newer: Mapping[bytes, memoryview]
    below: Sequence[ChunkLocation]
    rests: bool

    @property
    def added(self) -> float:
        """What `Reliance` counts: the older chunk is read in place of this one, and all the others beside it."""
        return (self.made.work + len(self.below) - 1) * self.below[0].raw_length

    def encode(self, digest: bytes, piece: Piece, older: Mapping[bytes, memoryview]) -> NewChunk | None:
        """The chunk, when it is what its codec expects, and not nearly what it was; `older` has what is not damaged."""
        if not all(base in older for base in self.made.older):
            return None
        bases = [*(older[base] for base in self.made.older), *self.newer.values()]
        if differs_little(piece.data, piece.form, bases[0], HALF):
            return None
        try:
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

    Left out are those that would weigh too much on their readers, however small they become, and those that are small,
    or small differences as they were before.
    """
    large = {digest: piece for digest, piece in fresh.items() if len(piece.data) >= _SMALLEST}
    candidates = {digest: piece.made() for digest, piece in large.items() if piece.made is not None}
    made = {digest: found for digest, found in candidates.items() if found is not None}
    if not made:
        return {}
    pinned = pin(list({base for found in made.values() for base in found.older}))
    found = {digest: _derivation(digest, each, fresh, pinned) for digest, each in made.items()}
    return {
        digest: each
        for digest, each in found.items()
        if each is not None and way.is_light(unwritten(digest, len(fresh[digest].data), 0), each.below)
    }


class Turns(NamedTuple):
    """Chunks that a step made, each of which is computed from what was whole in the commit before, or else is whole.

    Attributes:
        now: those that are computed this time.
        waiting: the others, and what any of them is made of.
    """

    now: Mapping[bytes, Derivation]
    waiting: AbstractSet[bytes]


def turns(known: Mapping[bytes, Derivation], reliance: Reliance) -> Turns:
    """As many are computed as readers can bear, those first that add little; the next time it is the others' turn."""
    ready = sorted((digest for digest in known if not known[digest].rests), key=lambda digest: known[digest].added)
    now = {digest: known[digest] for digest in ready if reliance.bears(known[digest].added)}
    parts = known.keys() | {newer for each in known.values() for newer in each.newer}
    return Turns(now, parts - now.keys())


def encode(
    group: Sequence[tuple[bytes, Piece]],
    encoder: Encoder,
    effort: Effort,
    near: Mapping[bytes, ChunkLocation],
    turns: Turns,
) -> list[NewChunk]:
    """Each chunk as what it was made of, or else as the encoder does it."""
    found = {digest: turns.now[digest] for digest, _ in group if digest in turns.now}
    older = encoder.read({base for each in found.values() for base in each.made.older})
    known = {digest: found[digest].encode(digest, piece, older) for digest, piece in group if digest in found}
    encoder.reliance.release(sum(found[digest].added for digest, chunk in known.items() if chunk is None))
    others = [(digest, piece) for digest, piece in group if known.get(digest) is None]
    rest = iter(encoder.encode(others, effort, near, turns.waiting))
    return [known.get(digest) or next(rest) for digest, _ in group]


def _derivation(
    digest: bytes, made: Made, fresh: Mapping[bytes, Piece], pinned: Mapping[bytes, ChunkLocation]
) -> Derivation | None:
    newer = fresh[digest].before[-made.newer :]
    names = {*made.older, *newer}
    if digest in names or len(names) < len(made.older) + made.newer:
        return None  # chunks that are alike, such as zeros
    size = len(fresh[digest].data)
    if not all(name in fresh for name in newer) or not all(_holds(pinned.get(name), size) for name in made.older):
        return None
    older = pinned[made.older[0]]
    if _is_small_difference(older, pinned):
        return None  # and so will this one
    below = _below(made.older, pinned)
    return Derivation(made, {name: fresh[name].data for name in newer}, below, rests=_was_computed(older))


def _below(digests: Iterable[bytes], pinned: Mapping[bytes, ChunkLocation]) -> list[ChunkLocation]:
    found: dict[bytes, ChunkLocation] = {}
    wanted = set(digests)
    while wanted:
        found |= {digest: pinned[digest] for digest in wanted}
        wanted = {base for digest in wanted for base in pinned[digest].bases} - found.keys()
    return list(found.values())


def _holds(place: ChunkLocation | None, size: int) -> bool:
    return place is not None and place.raw_length == size


def _was_computed(place: ChunkLocation) -> bool:
    return len(place.bases) > 1


def _is_small_difference(place: ChunkLocation, pinned: Mapping[bytes, ChunkLocation]) -> bool:
    return len(place.bases) == 1 and place.length < HALF * pinned[place.base].length
