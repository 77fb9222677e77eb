"""How a new chunk is encoded: whole, or as what changed in a chunk that the store has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.pace import Pace
from ckptstore.chunkstore.reliance import HALF, Reliance
from ckptstore.errors import CorruptData
from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs import BYTES, DELTA, Codec, Effort, Form, Level, encode

_SMALLEST = 4096
"""Smaller chunks are stored whole: looking for what they rest on would cost more than it saves."""


class Loan(Protocol):
    """Memory that its owner wants to change soon."""

    def keep(self) -> memoryview:
        """A copy of its bytes that lasts."""

    def rest(self) -> None:
        """Let it change, once its bytes are copied; nobody looks at them before `keep`."""

    def end(self) -> None:
        """Let it change."""

    def spoilt(self) -> Exception:
        """What to raise if it changed before."""


class Made(NamedTuple):
    """A codec that knows how a chunk was made: of chunks of the store, and then of those just before it.

    `work` is what that takes who reads it, beside what it was made of, to reading and decoding a whole chunk.
    """

    codec: Codec
    older: tuple[bytes, ...]
    newer: int
    work: float


class Piece(NamedTuple):
    """A chunk's raw bytes.

    Attributes:
        data: the bytes.
        copied: whether they are not the caller's own memory, nor on loan.
        form: what they are.
        base: gives the digest of a chunk that may be much like this one; empty when there is none.
        loan: to be ended once nobody looks at them any more.
        likely_new: whether what is on loan will probably have to be copied.
        made: gives what the chunk was made of, if anything.
        before: digests of the chunks just before it, when these may be part of that.
        goes_on: whether the next chunk may be made of this one.
        counts: whether progress counts them, as it does of arrays.
        live: the path of the array whose own memory they are, which others may write to meanwhile.
    """

    data: memoryview
    copied: bool
    form: Form = BYTES
    base: Callable[[], bytes] = bytes
    loan: Loan | None = None
    likely_new: bool = False
    made: Callable[[], Made | None] | None = None
    before: tuple[bytes, ...] = ()
    goes_on: bool = False
    counts: bool = True
    live: str = ""


class NewChunk(NamedTuple):
    """An encoded chunk that is not in a pack yet; `base` as in `ChunkLocation`.

    `below` is all of the store that it rests on.
    """

    digest: bytes
    codec: int
    payload: Buffer
    raw_length: int
    base: bytes = b""
    below: Sequence[ChunkLocation] = ()


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes chunks for one store.

    Attributes:
        level: what time may be spent on it.
        pace: knows how much of it pays when that is for us to say.
        way: how its bytes come.
        may_rest: which of these new chunks may rest on others; asked when there are some.
        raw: reads chunks of the store.
        reliance: how much rests on others so far.
        background: whether training goes on meanwhile.
    """

    level: Level
    pace: Pace
    way: Way
    may_rest: Callable[[set[bytes]], set[bytes]]
    raw: Callable[[Sequence[bytes]], list[memoryview]]
    reliance: Reliance = field(default_factory=Reliance)
    background: bool = False

    def effort(self, *, writes: bool) -> Effort:
        """The level for what comes next, while something `writes` what was encoded, or not."""
        return self.pace.choose(background=self.background, writes=writes) if self.level == "auto" else self.level

    def near(
        self, fresh: Mapping[bytes, Piece], pin: Callable[[Sequence[bytes]], Mapping[bytes, ChunkLocation]]
    ) -> dict[bytes, ChunkLocation]:
        """Digest → a whole chunk of the same length that it may rest on, pinned, where both can be read together."""
        candidates = {digest: piece.base() for digest, piece in fresh.items() if len(piece.data) >= _SMALLEST}
        bases = {digest: base for digest, base in candidates.items() if base}
        resting = self.may_rest(set(bases)) if bases else ()
        if not resting:
            return {}
        found = pin(list({bases[digest] for digest in resting}))
        roots = {digest: _root(found, bases[digest]) for digest in resting}
        return {
            digest: root
            for digest, root in roots.items()
            if root is not None and root.raw_length == len(fresh[digest].data)
            if self.way.is_light(unwritten(digest, root.raw_length, root.raw_length), [root])
        }

    def encode(
        self,
        group: Sequence[tuple[bytes, Piece]],
        effort: Effort,
        near: Mapping[bytes, ChunkLocation],
        waiting: AbstractSet[bytes],
    ) -> list[NewChunk]:
        """Each chunk on what it may rest, or whole, whatever is smaller; what waits whole unless that halves it."""
        wanted = {near[digest].digest for digest, _ in group if digest in near} if self.reliance.share else set()
        bases = self.read(wanted)
        found = []
        for digest, piece in group:
            base = near.get(digest)
            raw = None if base is None else bases.get(base.digest)
            asked = 0 if raw is None else len(piece.data)
            share = self.reliance.ask(asked)
            made = encode(piece.data, piece.form, raw, effort, min(HALF, share) if digest in waiting else share)
            chunk = NewChunk(digest, made.codec, made.payload, len(piece.data))
            if base is not None and made.uses_base:
                chunk = chunk._replace(base=base.digest, below=[base])
            self.reliance.record(len(piece.data), made.alone, made.added, asked)
            found.append(chunk)
        return found

    def read(self, digests: set[bytes]) -> dict[bytes, memoryview]:
        """The raw bytes of chunks of the store; of none when one of them is damaged."""
        wanted = sorted(digests)
        try:
            return dict(zip(wanted, self.raw(wanted), strict=True)) if wanted else {}
        except CorruptData:
            return {}  # for verify to report; nothing shall rest on it


def unwritten(digest: bytes, size: int, length: int) -> ChunkLocation:
    """A chunk of `size` bytes that may become a difference, as if that had so many."""
    return ChunkLocation(digest, "", 0, length, size, DELTA)


def _root(found: Mapping[bytes, ChunkLocation], digest: bytes) -> ChunkLocation | None:
    """The whole chunk that a chunk is, or rests on: so nothing is ever more than one step away from a whole one."""
    location = found.get(digest)
    if location is not None and len(location.bases) == 1:
        location = found[location.bases[0]]
    return location if location is not None and not location.base else None
