"""What one rank writes of a commit that several ranks make: the chunks it has whole, and the shared ones it owns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import msgspec

from ckptstore.catalog.base import Catalog
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Piece
from ckptstore.chunkstore.grouping import groups
from ckptstore.format.grid import Division
from ckptstore.format.manifest import INLINE_VALUE, Value
from ckptstore.operations.lineage import Lineage, StoredLineage
from ckptstore.operations.publish import discard
from ckptstore.operations.ranks.gathering import Gathering
from ckptstore.operations.ranks.granted import Granted
from ckptstore.operations.ranks.parts import Part, Unit, ready
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.operations.ranks.reports import Ask, Dealt, Grant, Opening, Report
from ckptstore.operations.ranks.trades import Trades

_WINDOW_BYTES = 256 << 20
_WINDOW_CHUNKS = 1 << 14


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank has of a state, and where it was told to save it.

    Attributes:
        chunks: gives the store; only the coordinator uses its catalog.
        run, step: the address.
        parts: its shards of tensors.
        values: gives its plain values, encoded, by path.
        logical_paths: by path, where these leaves are in commits.
    """

    chunks: Callable[[], ChunkStore]
    run: str
    step: int
    parts: Sequence[Part]
    values: Callable[[], Mapping[str, Value]]
    logical_paths: Mapping[str, str]


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
        units = chain(trades.units(turn, arrived), next(share.windows, ()))
        share.grant = ranks.agree(partial(share.ask, writer, units), grant)
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
        self._asked: list[tuple[bytes, Piece]] = []
        self._chunks: dict[str, dict[int, bytes]] = defaultdict(dict)
        self._inline: dict[str, bytes] = {}
        self._values: dict[str, tuple[Value, int]] = {}

    def open(self) -> Opening:
        self.chunks = self._held.chunks()
        if self._granted is not None:
            self.chunks = replace(self.chunks, catalog=cast("Catalog", self._granted))
        division = self.chunks.config.division
        units = [*self._value_units(division.most), *self._tensor_units(division)]
        windows = list(groups(units, lambda unit: unit.size, _WINDOW_BYTES, _WINDOW_CHUNKS))
        self.windows = iter(windows)
        shards = [part.shard for part in self._held.parts if part.shard.is_partial]
        return Opening(self.chunks.config.id, self._held.run, self._held.step, shards, len(windows))

    def own_writer(self) -> ChunkWriter:
        assert self._granted is not None
        return self.chunks.claiming_writer(self._granted)

    def ask(self, writer: ChunkWriter, units: Iterable[Unit]) -> Ask:
        """After storing what was granted of the chunks before."""
        self._store(writer)
        told = [(unit, self._piece(unit)) for unit in units]
        self._inline.update({unit.path: bytes(piece.data) for unit, piece in told if unit.inline})
        told = [(unit, piece) for unit, piece in told if not unit.inline]
        digests = writer.digests([piece for _, piece in told])
        for (unit, _), digest in zip(told, digests, strict=True):
            self._chunks[unit.path][unit.number] = digest
        self._asked = [(digest, piece) for digest, (_, piece) in zip(digests, told, strict=True)]
        names = len(self._granted.names) if self._granted else 0
        return Ask(b"".join(digests), [unit.size for unit, _ in told], self._bases(writer), names)

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
                yield Unit(path, number, len(piece.data), inline=False, entry=None, piece=partial(ready, piece))

    def _piece(self, unit: Unit) -> Piece:
        piece = unit.piece()
        if unit.entry is None:
            return piece
        return piece._replace(
            base=partial(self.lineage.base, self._held.logical_paths[unit.path], unit.entry, unit.number)
        )

    def _bases(self, writer: ChunkWriter) -> dict[int, bytes]:
        """What the coordinator has to look up for this rank's chunks."""
        if self._granted is None or writer.effort() != "best":
            return {}
        bases = ((place, digest, piece.base()) for place, (digest, piece) in enumerate(self._asked))
        return {place: base for place, digest, base in bases if base not in {b"", digest}}

    def _store(self, writer: ChunkWriter) -> None:
        asked, self._asked = self._asked, []
        grant, self.grant = self.grant, Grant()
        if self._granted is not None:
            self._granted.take(grant)
        if grant.wanted:
            writer.store(dict(asked[place] for place in grant.wanted))
