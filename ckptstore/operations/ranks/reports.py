"""What the ranks of one save send each other: small, since a coordinator hears a thousand of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ckptstore.catalog.records import ChunkLocation, NewPack
from ckptstore.errors import StateError
from ckptstore.format.manifest import Value
from ckptstore.operations.ranks.dealing import Deals, Shard


class Opening(NamedTuple):
    """What a rank is about to save: where to, its shards of tensors that it does not have whole, its own windows."""

    store: str
    run: str
    step: int
    shards: Sequence[Shard]
    windows: int


class Dealt(NamedTuple):
    """What a rank exchanges with others, how many windows of their own the ranks have, and the parent's document."""

    deals: Deals
    windows: int
    parent: str | None


class Ask(NamedTuple):
    """Chunks that a rank has, and how many names it has left.

    Attributes:
        digests: one after the other.
        sizes: in bytes.
        bases: place among the chunks → digest of the parent's chunk that this one may rest on.
        names: count.
    """

    digests: bytes
    sizes: Sequence[int]
    bases: Mapping[int, bytes]
    names: int


class Grant(NamedTuple):
    """Which of the chunks the rank shall store, names of packs reserved for it, and where the bases lie."""

    wanted: Sequence[int] = ()
    names: Sequence[str] = ()
    places: Sequence[ChunkLocation] = ()


class Report(NamedTuple):
    """What a rank wrote.

    Attributes:
        packs: its own.
        chunks: path → number of the chunk → digest, of tensors and of large values.
        inline: path → bytes of small tensors.
        values: path → encoded value and 0, or None and the size of its encoding in chunks.
        bases: see `ChunkWriter.bases`.
    """

    packs: Sequence[NewPack]
    chunks: Mapping[str, Mapping[int, bytes]]
    inline: Mapping[str, bytes]
    values: Mapping[str, tuple[Value, int]]
    bases: bytes


def merged(reports: Sequence[Report]) -> Report:
    """What all ranks wrote. Raises StateError for a value or chunk that two of them report."""
    chunks: dict[str, dict[int, bytes]] = {}
    inline: dict[str, bytes] = {}
    values: dict[str, tuple[Value, int]] = {}
    for report in reports:
        for path, held in report.chunks.items():
            known = chunks.setdefault(path, {})
            _check_once(path, bool(known.keys() & held.keys()))
            known.update(held)
        for path in (*report.inline, *report.values):
            _check_once(path, path in inline or path in values)
        inline.update(report.inline)
        values.update(report.values)
    packs = [pack for report in reports for pack in report.packs]
    return Report(packs, chunks, inline, values, b"".join(report.bases for report in reports))


def _check_once(path: str, known: bool) -> None:  # noqa: FBT001 - private
    if known:
        raise StateError(f"{path!r}: several ranks of this save wrote it: let the planner give it to one of them")
