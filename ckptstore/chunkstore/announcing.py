"""What is read later, told to a storage that can begin with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.jobs import Job
from ckptstore.format.packs import pack_key
from ckptstore.storage.base import GAP, Prefetching, Storage

AHEAD = 8
"""Batches: the disk has work while as many are decoded. On two cores four do as well, one does not."""


class _Span(NamedTuple):
    pack: str
    start: int
    end: int


def announcer(storage: Storage) -> Callable[[Sequence[Job]], None]:
    """What tells it of all that a batch reads."""
    if not isinstance(storage, Prefetching):  # slow in Python 3.11
        return lambda batch: None

    def announce(batch: Sequence[Job]) -> None:
        for span in _spans({place for job in batch for place in (*job.bases, job.location)}):
            storage.prefetch(pack_key(span.pack), span.start, span.end - span.start)

    return announce


def _spans(places: Iterable[ChunkLocation]) -> list[_Span]:
    """Where they lie, together with the little that is between them."""
    spans: list[_Span] = []
    for span in sorted(_Span(place.pack, place.offset, place.offset + place.length) for place in places):
        if spans and span.pack == spans[-1].pack and span.start <= spans[-1].end + GAP:
            spans[-1] = spans[-1]._replace(end=span.end)
        else:
            spans.append(span)
    return spans
