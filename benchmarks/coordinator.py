"""The work of the coordinator of many ranks, which are simulated: what they would send is made, then timed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ckptstore
from benchmarks.figures import OWN
from benchmarks.measuring import Samples
from ckptstore.catalog.records import ChunkLocation, NewPack
from ckptstore.chunkstore import ChunkStore
from ckptstore.format.grid import Division, Grid
from ckptstore.format.manifest import Entry, Manifest, TensorEntry
from ckptstore.operations import history
from ckptstore.operations.ranks.dealing import Shard
from ckptstore.operations.ranks.gathering import Gathering
from ckptstore.operations.ranks.merging import Merging
from ckptstore.operations.ranks.outlines import RankState
from ckptstore.operations.ranks.ranks import packed, unpacked
from ckptstore.operations.ranks.reports import Ask, Dealt, Grant, Opening, Report
from ckptstore.state.tree import flatten
from ckptstore.store import Store

_CHUNK = 4 << 20
_ROW = (1, _CHUNK // 4)
"""Of float32: a chunk each."""


def measure_coordinator(samples: Samples, ranks: int, chunks: int, folder: Path) -> None:
    """One save: every rank has a chunk of each of some tensors, and all chunks are new."""
    tensors = [f"model.layers.{number}.weight" for number in range(chunks // ranks)]
    with ckptstore.open(folder, chunk_bytes=_CHUNK) as store:
        parts = store._parts  # noqa: SLF001 - what it is made of
        gathering = Gathering(parts, lambda: history.draft("main", 1, None, {}))
        _Save(samples, parts, gathering, tensors, ranks).run()
        held = store.manifest(1)
        samples.correct[f"{ranks:,} ranks, publish"] = {
            OWN: all(len(held[name].chunks) == ranks * 16 for name in tensors)
        }


def measure_merging(samples: Samples, ranks: int, leaves: int, folder: Path) -> None:
    """What `commit` does before: every rank has the same leaves, and one of its own."""
    row = f"{ranks:,} ranks, merge"
    model = {f"layers.{number}.weight": torch.full((4,), float(number)) for number in range(leaves)}
    with ckptstore.open(folder) as store:
        common = _outlines(store, {"model": model})
        sent = [packed([*common, *_outlines(store, {"own": torch.tensor(rank)})]) for rank in range(ranks)]
    inline = {f"model/{name}": bytes(16) for name in model} | {f"{rank}/own": bytes(8) for rank in range(ranks)}
    made: list[Manifest] = []

    def merge() -> None:
        merging = Merging()
        merging.assign([unpacked(each) for each in sent])
        made.append(merging.manifest(Report([], {}, inline, {}, b""), Division(_CHUNK, halved=True)))

    samples.time(row, OWN, merge)
    samples.correct[row] = {OWN: len(made[0].entries) == leaves + ranks}


def _outlines(store: Store, state: dict[str, Any]) -> list[bytes]:
    return RankState(store._parts, 0, partial(flatten, state)).outlines()  # noqa: SLF001 - what it is made of


class _Save:
    def __init__(
        self, samples: Samples, parts: ChunkStore, gathering: Gathering, tensors: Sequence[str], ranks: int
    ) -> None:
        self._samples, self._parts, self._gathering, self._tensors = samples, parts, gathering, tensors
        self._ranks = ranks
        self._shape = (ranks, _ROW[1])
        self._digests = [[os.urandom(16) for _ in tensors] for _ in range(ranks)]

    def run(self) -> None:
        openings = [self._opening(rank) for rank in range(self._ranks)]
        with self._gathering:
            dealt: list[Dealt] = self._time("open", partial(self._gathering.deal, openings))
            asks = [Ask(b"".join(digests), [_CHUNK] * len(digests), {}, 0) for digests in self._digests]
            grants: list[Grant] = self._time("grant", partial(self._gathering.grant, asks))
            reports = [self._report(rank, grant) for rank, grant in enumerate(grants)]
            self._time("publish", partial(self._gathering.publish, reports, self._manifest))
        sizes = [sum(len(packed(each)) for each in messages) for messages in (openings, asks, reports)]
        got = sum(len(pickle.dumps(each)) for answers in (dealt, grants) for each in answers)
        self._add("all they send: MB", sum(sizes))
        self._add("of these, reports: MB", sizes[-1])
        self._add("all they are sent: MB", got)

    def _time(self, row: str, act: Any) -> Any:
        done: list[Any] = []
        self._samples.time(self._row(row), OWN, lambda: done.append(act()))
        return done[0]

    def _add(self, row: str, count: int) -> None:
        chunks = self._ranks * len(self._tensors)
        self._samples.add(self._row(row), OWN, count / 1e6 * 1e5 / chunks)

    def _row(self, row: str) -> str:
        return f"{self._ranks:,} ranks, {row}"

    def _opening(self, rank: int) -> Opening:
        start, stop = (rank, 0), (rank + 1, _ROW[1])
        shards = [Shard(name, 4, self._shape, start, stop) for name in self._tensors]
        return Opening(self._parts.config.id, "main", 1, shards, 1)

    def _report(self, rank: int, grant: Grant) -> Report:
        name, digests = (grant.names or self._own_names())[0], self._digests[rank]
        places = [ChunkLocation(digest, name, at * _CHUNK, _CHUNK, _CHUNK, 0) for at, digest in enumerate(digests)]
        held = {path: {rank: digest} for path, digest in zip(self._tensors, digests, strict=True)}
        return Report([NewPack(name, len(places) * _CHUNK, places)], held, {}, {}, b"")

    def _own_names(self) -> Sequence[str]:
        return self._gathering._claims.reserve(1)  # noqa: SLF001 - the first rank's writer does so

    def _manifest(self, written: Report, division: Division) -> Manifest:
        grid = Grid(self._shape, _ROW)
        entries: dict[str, Entry] = {
            path: TensorEntry(
                "torch", "float32", 4, self._shape, grid.chunk_shape, b"".join(held[at] for at in sorted(held))
            )
            for path, held in written.chunks.items()
        }
        return Manifest(entries, {})
