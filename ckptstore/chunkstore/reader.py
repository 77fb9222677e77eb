"""Chunks on their way out: one look-up for all, reads in the order in which they lie, decoded straight into the
destination where that is plain memory, and verified by digest before anyone is told.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, repeat
from typing import NamedTuple

from ckptstore.catalog.base import Catalog, ChunkLocation
from ckptstore.chunkstore.grouping import Advance, groups, wait_all
from ckptstore.chunkstore.needs import Way, decoding_bytes, granted
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.scratch import Scratch
from ckptstore.errors import CorruptData, MissingData, ObjectNotFound
from ckptstore.format.codecs import DELTA, RAW, Encoded
from ckptstore.format.packs import pack_key
from ckptstore.storage.base import GAP, Closing, RangeRead, Storage

_WORKERS = min(8, 2 * (os.cpu_count() or 1))  # more than cores, so that some read while others decode
_BATCH_BYTES = 8 << 20
_BATCH_CHUNKS = 1024
_LARGE = 256 << 10
"""From here on a chunk is verified as soon as it is read, while it is in a core's cache."""


class Fetch(NamedTuple):
    """A wish for one chunk.

    Attributes:
        digest, size: identity and raw length of the chunk.
        label: what it belongs to, for messages.
        out: where its bytes go, when that is `size` bytes of plain memory.
        deliver: otherwise, who gets them, in any thread; the buffer is only valid during the call.
        relay: who gets where the chunk lies, its encoded payload and its bytes, when he stores it again as it is.
    """

    digest: bytes
    size: int
    label: str
    out: memoryview | None = None
    deliver: Callable[[memoryview], None] | None = None
    relay: Callable[[ChunkLocation, memoryview, memoryview], None] | None = None


class _Job(NamedTuple):
    """A wish, where it lies, and what that rests on.

    Attributes:
        direct: whether the payload is read straight into the destination.
        alone: whether it is, for nobody else, and the storage gains nothing from reading more at once.
        scratch: bytes held on the way.
        needed: bytes that it takes alone.
        gap: those of them that the storage holds of what lies before it, and need not read.
    """

    wish: Fetch
    location: ChunkLocation
    bases: tuple[ChunkLocation, ...]
    direct: bool
    alone: bool
    scratch: int
    needed: int
    gap: int

    @property
    def scratched(self) -> bool:
        """Whether the payload may lie in memory that is used again."""
        return not self.direct and self.wish.relay is None

    @property
    def paired(self) -> bool:
        """Whether it is a difference that can be decoded together with the one chunk that it rests on."""
        difference = self.location.codec == DELTA and len(self.location.bases) == len(self.bases) == 1
        return difference and self.wish.out is not None and self.wish.relay is None


def fetch(
    storage: Storage,
    catalog: Catalog,
    payloads: Payloads,
    wishes: Sequence[Fetch],
    budget: int | None,
    beside: int,
    advance: Advance,
    scratch: Scratch,
) -> None:
    """Fulfil every wish, using at most `budget` bytes beyond the destinations, of which the caller holds `beside`.

    By default these are 128 MiB, or what one chunk needs if that is more. What is damaged is read once more, since the
    pack may have been replaced while it was open. So a wish may be delivered twice.

    Raises:
        CorruptData, MissingData: names the label of the chunk that is damaged or gone.
        BudgetTooSmall: one chunk does not fit into the given budget.
    """
    run = _Run(storage, payloads, scratch, advance)
    jobs = _jobs(run, catalog, wishes)
    reopened = False
    while True:
        try:
            _carry_out(jobs, run, budget, beside)
        except MissingData:
            before, jobs = jobs, _jobs(run, catalog, wishes)
            if [(job.location, job.bases) for job in jobs] == [(job.location, job.bases) for job in before]:
                raise  # otherwise gc took a copy that no commit needs any more, and there is another
        except CorruptData:
            if reopened or not isinstance(storage, Closing):
                raise
            reopened = True
            storage.close()
        else:
            return


def _carry_out(jobs: list[_Job], run: _Run, budget: int | None, beside: int) -> None:
    largest = max((job.needed for job in jobs), default=0)
    least = max((job.needed - job.gap for job in jobs), default=0)
    room = granted(budget, least, "one chunk", beside) - beside
    workers = max(1, min(_WORKERS, room // largest)) if largest else _WORKERS
    batches = list(_batches(jobs, room // workers - largest))
    if len(batches) == 1:
        run(batches[0])
        return
    rest = iter(batches)  # its steps are atomic
    with ThreadPoolExecutor(workers, "ckptstore-fetch") as pool:
        try:
            wait_all([pool.submit(_work, run, rest) for _ in range(min(workers, len(batches)))])
        finally:
            _give_up(rest)


def _work(run: _Run, rest: Iterator[list[_Job]]) -> None:
    """Carry out what no other thread has begun."""
    try:
        for batch in rest:
            run(batch)
    finally:
        _give_up(rest)


def _give_up(rest: Iterator[list[_Job]]) -> None:
    """Where one thread failed, or is interrupted, nobody begins anything more."""
    deque(rest, 0)


def _jobs(run: _Run, catalog: Catalog, wishes: Sequence[Fetch]) -> list[_Job]:
    located = catalog.locate(list({wish.digest for wish in wishes}))
    for wish in wishes:
        if wish.digest not in located:
            raise MissingData(f"{wish.label}: no pack holds its chunk {wish.digest.hex()}; run verify")
        if located[wish.digest].raw_length != wish.size:
            told = f"holds {located[wish.digest].raw_length} bytes instead of {wish.size}"
            raise CorruptData(f"{wish.label}: its chunk {wish.digest.hex()} {told}; run verify")
    placed = [(wish, located[wish.digest]) for wish in wishes]
    placed.sort(key=lambda item: (item[1].pack, item[1].offset))
    way = Way(run.payloads.sealer is not None, run.storage.copies)
    gaps = [_gap(before, after) for (_, before), (_, after) in pairwise(placed)] if way.copies else repeat(0)
    return [
        _job(wish, location, _below(wish.label, location, located), way, gap)
        for (wish, location), gap in zip(placed, chain([0], gaps), strict=False)
    ]


def _job(wish: Fetch, location: ChunkLocation, bases: tuple[ChunkLocation, ...], way: Way, gap: int) -> _Job:
    placed = wish.out is not None
    direct = placed and location.codec == RAW.number and location.length == wish.size and not way.sealed
    scratch = way.scratch(location, bases, direct=direct, placed=placed, gap=gap)
    needed = scratch + decoding_bytes((*bases, location))
    alone = direct and wish.relay is None and not way.copies and wish.size >= _LARGE
    return _Job(wish, location, bases, direct, alone, scratch, needed, way.copies * gap)


def _below(label: str, location: ChunkLocation, located: Mapping[bytes, ChunkLocation]) -> tuple[ChunkLocation, ...]:
    """All that a chunk rests on, each behind what it rests on itself."""
    if not location.base:
        return ()
    found: dict[bytes, ChunkLocation] = {}

    def add(digest: bytes) -> None:
        if digest in found:
            return
        if digest not in located:
            raise MissingData(f"{label}: no pack holds the chunk {digest.hex()} that it rests on; run verify")
        for base in located[digest].bases:
            add(base)
        found[digest] = located[digest]

    for digest in location.bases:
        add(digest)
    return tuple(found.values())


def _gap(before: ChunkLocation, after: ChunkLocation) -> int:
    """Bytes between two chunks that a storage may read too; it does so only where they are few."""
    between = after.offset - (before.offset + before.length)
    return between if before.pack == after.pack and 0 < between <= GAP else 0


def _batches(jobs: list[_Job], scratch: int) -> Iterator[list[_Job]]:
    """Jobs of one pack, near each other, few enough that their scratch stays below `scratch` plus one chunk."""
    for _, of_pack in groupby(jobs, key=lambda job: job.location.pack):
        for near in groups(of_pack, lambda job: job.wish.size, _BATCH_BYTES, _BATCH_CHUNKS):
            yield from groups(near, lambda job: job.scratch, max(scratch, 1), _BATCH_CHUNKS)


@dataclass(frozen=True, slots=True)
class _Run:
    """Carries out one batch."""

    storage: Storage
    payloads: Payloads
    scratch: Scratch
    advance: Advance

    def __call__(self, batch: list[_Job]) -> None:
        known: dict[bytes, memoryview] = {}
        for job in batch:
            if job.alone and job.wish.out is not None:
                self._read_pack(job.location.pack, [RangeRead(job.location.offset, job.wish.out)], job.wish.label)
                with _told(job.location, job.wish.label):
                    self.payloads.check(job.location, job.wish.out)
                self._done(job, known)
        others = [job for job in batch if not job.alone]
        if others:
            others.sort(key=lambda job: len(job.bases))  # what a chunk rests on has fewer than the chunk has
            self._bring(others, known)

    def _bring(self, batch: list[_Job], known: dict[bytes, memoryview]) -> None:
        """Read all at once, and what they rest on unless it is `known` or among them; then decode in order."""
        there = known.keys() | {job.location.digest for job in batch if job.wish.out is not None}
        below = {base.digest: base for job in batch for base in job.bases if base.digest not in there}
        lengths = [place.length for place in (*below.values(), *(job.location for job in batch if job.scratched))]
        with self.scratch.lent(sum(lengths)) as take:
            stored = {digest: take(base.length) for digest, base in below.items()}
            reads = [RangeRead(job.location.offset, _destination(job, take)) for job in batch]
            places = [(job.location.pack, read) for job, read in zip(batch, reads, strict=True)]
            places += [(base.pack, RangeRead(base.offset, stored[digest])) for digest, base in below.items()]
            self._read(places, batch[0].wish.label)
            self._deliver_all(batch, [read.out for read in reads], stored, known)

    def _deliver_all(
        self,
        batch: list[_Job],
        payloads: list[memoryview],
        stored: dict[bytes, memoryview],
        known: dict[bytes, memoryview],
    ) -> None:
        uses = Counter(base.digest for job in batch for base in job.bases)
        for job, payload in zip(batch, payloads, strict=True):
            if job.paired and uses[job.bases[0].digest] == 1 and job.bases[0].digest in stored:
                self._deliver_pair(job, payload, stored.pop(job.bases[0].digest))
            else:
                self._decode_bases(job, stored, known)
                self._deliver(job, payload, known)
            self._done(job, known)

    def _done(self, job: _Job, known: dict[bytes, memoryview]) -> None:
        if job.wish.out is not None:
            known[job.location.digest] = job.wish.out
        self.advance(job.wish.size)

    def _decode_bases(self, job: _Job, stored: dict[bytes, memoryview], known: dict[bytes, memoryview]) -> None:
        for base in job.bases:
            if base.digest not in known:
                below = stored.pop(base.digest)
                _, known[base.digest] = self._decoded(base, below, None, known, job.wish.label, checked=False)

    def _read(self, places: list[tuple[str, RangeRead]], label: str) -> None:
        for pack, of_pack in groupby(sorted(places, key=lambda place: place[0]), key=lambda place: place[0]):
            self._read_pack(pack, [read for _, read in of_pack], label)

    def _read_pack(self, pack: str, reads: Sequence[RangeRead], label: str) -> None:
        try:
            self.storage.get_ranges(pack_key(pack), reads)
        except ObjectNotFound:
            raise MissingData(f"{label}: pack {pack} is not in {self.storage.url}; run verify") from None
        except CorruptData as error:
            raise CorruptData(f"{label}: {error}; run verify") from error

    def _deliver(self, job: _Job, stored: memoryview, known: Mapping[bytes, memoryview]) -> None:
        out = None if job.direct else job.wish.out
        payload, raw = self._decoded(job.location, stored, out, known, job.wish.label)
        if job.wish.deliver is not None:
            job.wish.deliver(raw)
        if job.wish.relay is not None:
            job.wish.relay(job.location, payload, raw)

    def _deliver_pair(self, job: _Job, stored: memoryview, below: memoryview) -> None:
        assert job.wish.out is not None
        (base,) = job.bases
        try:
            payload, base_payload = self.payloads.opened(job.location, stored), self.payloads.opened(base, below)
            self.payloads.decode_with(job.location, payload, job.wish.out, Encoded(base.codec, base_payload))
        except CorruptData:  # one after the other, they tell which of them is damaged
            _, raw = self._decoded(base, below, None, {}, job.wish.label)
            self._deliver(job, stored, {base.digest: raw})

    def _decoded(
        self,
        location: ChunkLocation,
        stored: memoryview,
        out: memoryview | None,
        known: Mapping[bytes, memoryview],
        label: str,
        *,
        checked: bool = True,
    ) -> tuple[memoryview, memoryview]:
        """Encoded payload and raw bytes."""
        with _told(location, label):
            payload = self.payloads.opened(location, stored)
            bases = [known[base] for base in location.bases]
            return payload, self.payloads.decode(location, payload, out, bases, checked=checked)


@contextmanager
def _told(location: ChunkLocation, label: str) -> Iterator[None]:
    """Damage names where it was met."""
    try:
        yield
    except CorruptData as error:
        where = f"pack {location.pack} at offset {location.offset}"
        what = f"a chunk in {where}, or one that it rests on," if location.bases else f"a chunk in {where}"
        raise CorruptData(f"{label}: {what} is damaged: {error}; run verify") from error


def _destination(job: _Job, take: Callable[[int], memoryview]) -> memoryview:
    if job.direct and job.wish.out is not None:
        return job.wish.out
    return take(job.location.length) if job.scratched else memoryview(bytearray(job.location.length))
