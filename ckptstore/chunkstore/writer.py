"""Chunks on their way in: digest → look up and pin → encode what is new → pack → put.

Work goes in windows, so that the catalog is asked rarely; packs are put in the background while the next window is
hashed, and a batch of chunks is encoded while the one before goes into its pack. What a writer holds beyond the
caller's own memory is bounded: packs in flight, the pack being built, two batches, and one window of copies.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Self, TypeVar

from ckptstore.catalog.records import ChunkLocation, NewPack
from ckptstore.chunkstore import windows
from ckptstore.chunkstore.claims import Claims
from ckptstore.chunkstore.deriving import Derivation, Pile, Turns, derivations, encode, turns
from ckptstore.chunkstore.encoding import Encoder, NewChunk, Piece
from ckptstore.chunkstore.grouping import Advance, groups
from ckptstore.chunkstore.packing import Packing
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.windows import NEIGHBOURS, Item
from ckptstore.format.codecs import Effort
from ckptstore.format.manifest import split_digests
from ckptstore.pools import Pool
from ckptstore.storage.base import Storage

T = TypeVar("T")

_WORKERS = min(4, os.cpu_count() or 1)
_SOON = 8 << 20
"""From this size on a pack is put before it is full, when nothing new came, or only what was likely to be new."""
_BATCH_BYTES = 8 << 20
_BATCH_CHUNKS = 256


class ChunkWriter:
    """Takes chunks, stores the new ones in packs, and says which packs a commit of them relies on.

    Used as a context manager; leaving it ends its threads. After an error nothing is live: what was put is found
    by gc through the session.
    """

    def __init__(
        self,
        storage: Storage,
        claims: Claims,
        payloads: Payloads,
        encoder: Encoder,
        refuse: Exception | None,
        lost: AbstractSet[bytes],
        advance: Advance,
    ) -> None:
        self._claims, self._encoder, self._refuse, self._lost = claims, encoder, refuse, lost
        self._digest, self._advance = payloads.digest, advance
        self._packing = Packing(storage, claims, payloads, encoder.pace, advance)
        self._bases: set[bytes] = set()
        self._pack_of: dict[bytes, str] = {}
        self._used: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._workers = Pool(_WORKERS, "ckptstore-digest")
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.shutdown(cancel_futures=True)
        self._packing.close()

    @property
    def keys(self) -> list[str]:
        """Storage keys of the packs that were put so far, or tried to."""
        return self._packing.keys

    def write(self, pieces: Iterable[Piece]) -> list[bytes]:
        """The digests of all pieces, in order; those the store does not hold yet are on their way into packs."""
        digests: list[bytes] = []
        for window in windows.cut(pieces):
            digests += self._write_window(window)
        return digests

    def effort(self) -> Effort:
        """What may be done with the next chunks."""
        return self._encoder.effort(writes=self._packing.writes)

    def digests(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Those of all pieces, in order; nothing is written."""
        return [digest for digest, _ in self._spread(self._look, pieces)]

    def rely_on(self, digests: Sequence[bytes]) -> set[bytes]:
        """Those chunks that the store holds: they need not be written, and gc spares them."""
        found = self._claims.pin(list(set(digests))) if digests else {}
        held = [found[digest] for digest in digests if digest in found]
        for location in found.values():
            self._rely_on(location)
        self._advance(sum(location.raw_length for location in held))
        return {location.digest for location in held}

    @property
    def bases(self) -> bytes:
        """The digests of all chunks that others rest on, one after the other."""
        return b"".join(sorted(self._bases))

    def finish(self) -> tuple[list[NewPack], dict[str, int]]:
        """Wait until everything is durable; this session's own packs, and how many bytes are needed of each pack."""
        own = self._packing.finish()
        return own, dict(self._used) | {pack.name: sum(chunk.length for chunk in pack.chunks) for pack in own}

    def _write_window(self, window: list[Piece]) -> list[bytes]:
        looked = self._spread(self._look, window)
        digests = [digest for digest, _ in looked]
        unseen = list({digest for digest in digests if digest not in self._pack_of})
        found = self._claims.pin(unseen) if unseen else {}
        for location in found.values():
            self._rely_on(location)
        fresh: dict[bytes, Piece] = {}
        for number, (digest, piece) in enumerate(looked):
            if digest not in self._pack_of and digest not in fresh:
                fresh[digest] = _after(piece, digests[max(0, number - NEIGHBOURS) : number])
        lasting = dict(zip(fresh, self._spread(_keep, fresh.values()), strict=True))
        for digest, piece in fresh.items():
            if piece.loan is not None and self._digest.compute(lasting[digest].data) != digest:
                raise piece.loan.spoilt()
        for _, piece in looked:
            if piece.loan is not None:
                piece.loan.end()
        if fresh:
            self.store(lasting)
        if self._packing.size >= _SOON and _is_quiet(looked, fresh):
            self._packing.put()
        return digests

    def _rely_on(self, location: ChunkLocation) -> None:
        self._bases.update(location.bases)
        if location.digest not in self._pack_of:
            self._pack_of[location.digest] = location.pack
            self._used[location.pack] += location.length

    def _look(self, group: list[Piece]) -> list[tuple[bytes, Piece]]:
        """With their digests. What is likely new is copied at once, so that its loan need not wait for the others."""
        found = []
        for piece in group:
            lasting = piece
            if piece.loan is not None and piece.likely_new:
                (lasting,) = _keep([piece])
                piece.loan.end()
            found.append((self._digest.compute(lasting.data), lasting))
            if lasting.loan is not None:
                lasting.loan.rest()
        self._advance(sum(len(piece.data) for piece in group if piece.counts))
        return found

    def _spread(self, work: Callable[[list[Piece]], list[T]], pieces: Iterable[Piece]) -> list[T]:
        """`work` on all pieces, in order; many small ones go to a thread together."""
        batches = groups(pieces, lambda piece: len(piece.data), _BATCH_BYTES, _BATCH_CHUNKS)
        return [made for batch in self._workers.map(work, batches) for made in batch]

    def store(self, fresh: Mapping[bytes, Piece]) -> None:
        """Put chunks under their digests on their way into packs, even if the store holds them already."""
        if self._refuse is not None and not fresh.keys() <= self._lost:
            raise self._refuse
        size = sum(len(piece.data) for piece in fresh.values())
        self._packing.expect(size)
        self._encoder.reliance.expect(size)
        turning = turns(self._derivations(fresh), self._encoder.reliance)
        near: dict[bytes, ChunkLocation] | None = None
        pile = Pile(self._encoder.way)
        ahead: Iterable[NewChunk] = ()
        for batch in windows.together(fresh.items(), windows.COPIES, windows.CHUNKS):
            self._advance(0)
            effort = self.effort()
            if near is None and effort == "best":
                near = self._encoder.near(fresh, self._claims.pin)
            rests_on = (near or {}) if effort == "best" else {}
            under_way = self._encoded(batch, effort, rests_on, turning)
            if turning.now:
                under_way = self._lighter(under_way, pile, batch, effort, rests_on, turning)
            self._take(ahead, fresh)
            ahead = under_way
        self._take(ahead, fresh)

    def _derivations(self, fresh: Mapping[bytes, Piece]) -> dict[bytes, Derivation]:
        made = {digest for digest, piece in fresh.items() if piece.made}
        resting = self._encoder.may_rest(made) if made else set()
        if not resting:
            return {}
        some = {digest: piece for digest, piece in fresh.items() if digest in resting or piece.goes_on}
        return derivations(some, self._claims.pin, self._encoder.way)

    def _encoded(
        self,
        batch: Sequence[tuple[bytes, Piece]],
        effort: Effort,
        near: Mapping[bytes, ChunkLocation],
        turning: Turns,
    ) -> Iterable[NewChunk]:
        """The chunks of a batch, at which threads are from here on."""
        parts = windows.together(batch, windows.COPIES // _WORKERS, _BATCH_CHUNKS)
        work = partial(encode, encoder=self._encoder, effort=effort, near=near, turns=turning)

        def measured(part: list[Item]) -> list[NewChunk]:
            with self._encoder.pace.encoding(effort, sum(len(piece.data) for _, piece in part)) as sizes:
                made = work(part)
                sizes += [len(chunk.payload) for chunk in made]
            return made

        return chain.from_iterable(self._workers.map(measured, parts))

    def _lighter(
        self,
        begun: Iterable[NewChunk],
        pile: Pile,
        batch: Sequence[tuple[bytes, Piece]],
        effort: Effort,
        near: Mapping[bytes, ChunkLocation],
        turning: Turns,
    ) -> Iterator[NewChunk]:
        """The chunks, those encoded again that rest on too much."""
        made = list(begun)
        heavy = pile.heavy(made, near)
        self._encoder.reliance.release(sum(turning.now[digest].added for digest in heavy & turning.now.keys()))
        again = self._encoded([item for item in batch if item[0] in heavy], effort, near, turning._replace(now={}))
        instead = {chunk.digest: chunk for chunk in again}
        yield from (instead.get(chunk.digest, chunk) for chunk in made)

    def _take(self, made: Iterable[NewChunk], fresh: Mapping[bytes, Piece]) -> None:
        for chunk in made:
            self._bases.update(split_digests(chunk.base, len(chunk.digest)))
            for location in chunk.below:
                self._rely_on(location)
            piece = fresh[chunk.digest]
            self.append(chunk, piece if piece.live and not self._encoder.background else None)

    def append(self, chunk: NewChunk, live: Piece | None = None) -> None:
        """Put an encoded chunk on its way into a pack as it is; that what it rests on stays is for the caller.

        `live` is what it was made of, where others may write to that.
        """
        self._pack_of[chunk.digest] = self._packing.append(chunk, live)


def _is_quiet(looked: Iterable[Item], fresh: Mapping[bytes, Piece]) -> bool:
    """Whether nothing was new, or some of it looked steady, and all of that was."""
    steady = {digest for digest, piece in looked if not piece.likely_new}
    return not fresh or (bool(steady) and steady.isdisjoint(fresh))


def _keep(group: list[Piece]) -> list[Piece]:
    return [piece if piece.loan is None else piece._replace(data=piece.loan.keep(), loan=None) for piece in group]


def _after(piece: Piece, digests: Sequence[bytes]) -> Piece:
    return piece if piece.made is None else piece._replace(before=tuple(digests))
