"""What one rank writes of a commit that several ranks make: the chunks it has whole, and the shared ones it owns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec

from ckptstore.catalog.base import Catalog
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Piece
from ckptstore.chunkstore.grouping import groups
from ckptstore.errors import changed_meanwhile
from ckptstore.format.grid import Division
from ckptstore.format.manifest import INLINE_VALUE, Value
from ckptstore.operations.committing.lineage import Lineage, StoredLineage
from ckptstore.operations.committing.publish import discard
from ckptstore.operations.ranks.counting import Counting
from ckptstore.operations.ranks.gathering import Gathering
from ckptstore.operations.ranks.granted import Granted
from ckptstore.operations.ranks.parts import Part, Ready, Unit, pieces_of
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.operations.ranks.reports import Ask, Dealt, Grant, Opening, Report
from ckptstore.operations.ranks.trades import Trades

_WINDOW_BYTES = 256 << 20
_WINDOW_CHUNKS = 1 << 14


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank has of a state, and where it is to save it.

    Attributes:
        chunks: gives the store; only the coordinator uses its catalog.
        run, step: the address.
        parts: its shards of tensors.
        values: gives its plain values, encoded, by path.
        logical_paths: by path, where these leaves are in commits.
        counting: counts what was stored, or need not be.
    """

    chunks: Callable[[], ChunkStore]
    run: str
    step: int
    parts: Sequence[Part]
    values: Callable[[], Mapping[str, Value]]
    logical_paths: Mapping[str, str]
    counting: Counting = field(default_factory=Counting)


class _Asked(NamedTuple):
    """A chunk that the coordinator was asked for; its bytes, unless they stayed where they are."""

    unit: Unit
    digest: bytes
    piece: Piece | None


def write_share(ranks: Ranks, gathering: Gathering | None, held: Held) -> Report:
    """Store what is new of it, together with all other ranks; the coordinator has the `gathering`.

    Raises what kept this rank from it, or RankFailed for another one.
    """
    share = _Share(held, None if gathering else Granted())
    dealt = ranks.agree(share.open, gathering.deal if gathering else _never)
    share.lineage = gathering.lineage if gathering else StoredLineage(share.chunks, dealt.parent)
    trades = Trades(ranks.rank, dealt.deals.tensors, held.parts, share.chunks.config.division)
    writer = gathering.writer if gathering else share.own_writer()
    try:
        with writer:
            return _write_rounds(ranks, gathering, share, trades, dealt, writer)
    except BaseException:  # when the session has ended, gc may have been here before the last pack came
        discard(share.chunks.storage, writer.keys)
        raise


def _write_rounds(
    ranks: Ranks, gathering: Gathering | None, share: _Share, trades: Trades, dealt: Dealt, writer: ChunkWriter
) -> Report:
    grant = gathering.grant if gathering else _never
    for turn in range(max(dealt.deals.turns, dealt.windows)):
        arrived = trades.exchange(ranks, turn)
        window = next(share.windows, ())
        own = [*trades.held(turn), *((unit.path, unit.size) for unit in window)]
        units = chain(trades.units(turn, arrived), window)
        share.grant = ranks.agree(partial(share.ask, writer, units, own), grant)
    ranks.agree(partial(share.finish, writer), gathering.settle if gathering else _never)
    return share.report(writer)


def _never(_: object) -> Sequence[Any]:
    raise AssertionError("only the coordinator answers")


class _Share:
    def __init__(self, held: Held, granted: Granted | None) -> None:
        self._held, self._granted = held, granted
        self.lineage: Lineage
        self.windows: Iterator[Sequence[Unit]] = iter(())
        self.grant = Grant()
        self._asked: list[_Asked] = []
        self._own: Iterable[tuple[str, int]] = ()
        self._chunks: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._inline: dict[str, bytes] = {}
        self._values: dict[str, tuple[Value, int]] = {}

    def open(self) -> Opening:
        self._held.counting.begin()
        self.chunks = self._held.chunks()
        if self._granted is not None:
            self.chunks = self.chunks.asking(cast("Catalog", self._granted))
        division = self.chunks.config.division
        units = [*self._value_units(division.most), *self._tensor_units(division)]
        windows = list(groups(units, lambda unit: unit.size, _WINDOW_BYTES, _WINDOW_CHUNKS))
        self.windows = iter(windows)
        shards = [part.shard for part in self._held.parts if part.shard.is_partial]
        return Opening(self.chunks.config.id, self._held.run, self._held.step, shards, len(windows))

    def own_writer(self) -> ChunkWriter:
        assert self._granted is not None
        return self.chunks.claiming_writer(self._granted)

    def ask(self, writer: ChunkWriter, units: Iterable[Unit], own: Iterable[tuple[str, int]]) -> Ask:
        """After storing what was granted of the chunks before; these are made of `own`, path and bytes, and others'."""
        self._store(writer)
        self._own = own
        self._asked = self._looked(writer, [unit for unit in units if not self._took_inline(unit)])
        for unit, digest, _ in self._asked:
            self._chunks[unit.path][unit.number] = digest
        digests = b"".join(asked.digest for asked in self._asked)
        names = len(self._granted.names) if self._granted else 0
        return Ask(digests, [asked.unit.size for asked in self._asked], self._bases(writer), names)

    def finish(self, writer: ChunkWriter) -> None:
        self._store(writer)
        writer.finish()

    def report(self, writer: ChunkWriter) -> Report:
        return Report(writer.finish()[0], self._chunks, self._inline, self._values, writer.bases)

    def _tensor_units(self, division: Division) -> Iterator[Unit]:
        for part in self._held.parts:
            yield from part.units(part.shard.grid(division))

    def _value_units(self, most: int) -> Iterator[Unit]:
        for path, value in self._held.values().items():
            encoded = msgspec.msgpack.encode(value)
            if len(encoded) <= INLINE_VALUE:
                self._values[path] = value, 0
                continue
            self._values[path] = None, len(encoded)
            for number, at in enumerate(range(0, len(encoded), most)):
                piece = Piece(memoryview(encoded)[at : at + most], copied=False)
                yield Unit(path, number, len(piece.data), inline=False, entry=None, content=Ready(piece))

    def _took_inline(self, unit: Unit) -> bool:
        if unit.inline:
            self._inline[unit.path] = bytes(unit.content.piece().data)
        return unit.inline

    def _looked(self, writer: ChunkWriter, units: Sequence[Unit]) -> list[_Asked]:
        """With their digests; what is known of devices stays there."""
        places = [unit.content.place() for unit in units]
        known = [place.known() if place is not None else None for place in places]
        pieces = self._pieces([unit for unit, digest in zip(units, known, strict=True) if digest is None])
        found = zip(writer.digests(pieces), pieces, strict=True)
        asked = [
            _Asked(unit, *next(found)) if digest is None else _Asked(unit, digest, None)
            for unit, digest in zip(units, known, strict=True)
        ]
        for each, place in zip(asked, places, strict=True):
            if place is not None:
                place.learn(each.digest)
        return asked

    def _pieces(self, units: Sequence[Unit]) -> list[Piece]:
        return [
            piece._replace(base=partial(self._base, unit)) for unit, piece in zip(units, pieces_of(units), strict=True)
        ]

    def _base(self, unit: Unit) -> bytes:
        if unit.entry is None:
            return b""
        return self.lineage.base(self._held.logical_paths[unit.path], unit.entry, unit.number)

    def _bases(self, writer: ChunkWriter) -> dict[int, bytes]:
        """What the coordinator has to look up for this rank's chunks."""
        if self._granted is None or writer.effort() != "best":
            return {}
        bases = ((place, asked.digest, self._base(asked.unit)) for place, asked in enumerate(self._asked))
        return {place: base for place, digest, base in bases if base not in {b"", digest}}

    def _store(self, writer: ChunkWriter) -> None:
        asked, self._asked = self._asked, []
        grant, self.grant = self.grant, Grant()
        if self._granted is not None:
            self._granted.take(grant)
        if grant.wanted:
            wanted = [asked[place] for place in grant.wanted]
            brought = self._brought(writer, [each for each in wanted if each.piece is None])
            writer.store({each.digest: each.piece or brought[each.digest] for each in wanted})
        own, self._own = self._own, ()
        self._held.counting.done(own)

    def _brought(self, writer: ChunkWriter, late: Sequence[_Asked]) -> dict[bytes, Piece]:
        """What had stayed where it is. Raises StateError unless it is what it was."""
        pieces = self._pieces([asked.unit for asked in late])
        for asked, digest in zip(late, writer.digests(pieces), strict=True):
            if digest != asked.digest:
                raise changed_meanwhile(asked.unit.path)
        return {asked.digest: piece for asked, piece in zip(late, pieces, strict=True)}
