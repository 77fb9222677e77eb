"""Chunks on their way out: one look-up for all, reads in the order in which they lie, decoded straight into the
destination where that is plain memory, and verified by digest before anyone is notified.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.grouping import Advance, wait_all
from ckptstore.chunkstore.jobs import Fetch, Job, batches, families, jobs_for
from ckptstore.chunkstore.needs import Way, granted
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.scratch import Scratch
from ckptstore.chunkstore.stretches import Stretches
from ckptstore.errands import uninterrupted
from ckptstore.errors import CorruptData, MissingData, ObjectNotFound
from ckptstore.format.codecs import RAW, Encoded
from ckptstore.format.packs import pack_key
from ckptstore.pools import Pool
from ckptstore.storage.base import Closing, RangeRead, Storage

_WORKERS = min(8, 2 * (os.cpu_count() or 1))  # more than cores, so that some read while others decode


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
    jobs = _located(run, catalog, wishes)
    reopened = False
    while True:
        try:
            _carry_out(jobs, run, budget, beside)
        except MissingData:
            before, jobs = jobs, _located(run, catalog, wishes)
            if [(job.location, job.bases) for job in jobs] == [(job.location, job.bases) for job in before]:
                raise  # otherwise gc took a copy that no commit needs any more, and there is another
        except CorruptData:
            if reopened or not isinstance(storage, Closing):
                raise
            reopened = True
            storage.close()
        else:
            return


def _located(run: _Run, catalog: Catalog, wishes: Sequence[Fetch]) -> list[Job]:
    return jobs_for(wishes, catalog.locate(list({wish.digest for wish in wishes})), run.way)


def _carry_out(jobs: list[Job], run: _Run, budget: int | None, beside: int) -> None:
    least = max((job.needed - job.gap for job in jobs), default=0)
    room = granted(budget, least, "one chunk", beside) - beside
    found = list(families(jobs, run.way, room))
    largest = max((family.needed for family in found), default=0)
    workers = max(1, min(_WORKERS, room // largest)) if largest else _WORKERS
    tasks = list(batches(found, room // workers - largest))
    if len(tasks) < 2:
        for task in tasks:
            run(task)
        return
    workers = min(workers, len(tasks))
    stretches = Stretches(tasks, workers)

    def spread() -> None:
        with Pool(workers, "ckptstore-fetch") as pool:
            wait_all([pool.submit(_work, run, stretches) for _ in range(workers)])

    uninterrupted(spread, stretches.give_up)


def _work(run: _Run, stretches: Stretches[list[Job]]) -> None:
    try:
        for batch in stretches:
            run(batch)
    except BaseException:
        stretches.give_up()
        raise


@dataclass(frozen=True, slots=True)
class _Run:
    """Carries out one batch."""

    storage: Storage
    payloads: Payloads
    scratch: Scratch
    advance: Advance

    @property
    def way(self) -> Way:
        """How bytes come."""
        return Way(self.payloads.sealer is not None, self.storage.copies)

    def __call__(self, batch: Sequence[Job]) -> None:
        known: dict[bytes, memoryview] = {}
        for job in batch:
            if job.alone and (out := job.out) is not None:
                self._read_pack(job.location.pack, [RangeRead(job.location.offset, out)], job.wish.label)
                with _locating_damage(job.location, job.wish.label):
                    self.payloads.check(job.location, out)
                known[job.location.digest] = out
                self.advance(job.wish.size)
        others = [job for job in batch if not job.alone]
        if others:
            others.sort(key=lambda job: len(job.bases))  # what a chunk rests on has fewer than the chunk has
            self._bring(others, known)

    def _bring(self, batch: Sequence[Job], known: dict[bytes, memoryview]) -> None:
        """Read all at once, and what they rest on unless it is `known` or among them; then decode in order."""
        there = known.keys() | {job.location.digest for job in batch}
        below = {base.digest: base for job in batch for base in job.bases if base.digest not in there}
        uses = Counter(base.digest for job in batch for base in job.bases)
        pairs = {job.bases[0].digest for job in batch if job.paired and uses[job.bases[0].digest] == 1} & below.keys()
        decoded = [base.raw_length for base in below.values() if base.digest not in pairs and base.codec != RAW.number]
        decoded += [job.size for job in batch if job.unpacked]
        lengths = [place.length for place in (*below.values(), *(job.location for job in batch if job.scratched))]
        with self.scratch.lent(sum(lengths) + sum(decoded)) as take:
            stored = {digest: take(base.length) for digest, base in below.items()}
            reads = [RangeRead(job.location.offset, _destination(job, take)) for job in batch]
            places = [(job.location.pack, read) for job, read in zip(batch, reads, strict=True)]
            places += [(base.pack, RangeRead(base.offset, stored[digest])) for digest, base in below.items()]
            self._read(places, {place.pack: job.wish.label for job in batch for place in (*job.bases, job.location)})
            for job, read in zip(batch, reads, strict=True):
                if job.paired and job.bases[0].digest in pairs:
                    self._deliver_pair(job, read.out, stored[job.bases[0].digest])
                else:
                    self._decode_bases(job, stored, known, take)
                    raw = self._deliver(job, read.out, take(job.size) if job.unpacked else job.out, known)
                    if uses[job.location.digest]:
                        known[job.location.digest] = raw
                self.advance(job.wish.size)

    def _decode_bases(
        self,
        job: Job,
        stored: Mapping[bytes, memoryview],
        known: dict[bytes, memoryview],
        take: Callable[[int], memoryview],
    ) -> None:
        for base in job.bases:
            if base.digest not in known:
                out = None if base.codec == RAW.number else take(base.raw_length)
                below = stored[base.digest]
                _, known[base.digest] = self._decoded(base, below, out, known, job.wish.label, checked=False)

    def _read(self, places: list[tuple[str, RangeRead]], labels: Mapping[str, str]) -> None:
        for pack, of_pack in groupby(sorted(places, key=lambda place: place[0]), key=lambda place: place[0]):
            self._read_pack(pack, [read for _, read in of_pack], labels[pack])

    def _read_pack(self, pack: str, reads: Sequence[RangeRead], label: str) -> None:
        try:
            self.storage.get_ranges(pack_key(pack), reads)
        except ObjectNotFound:
            raise MissingData(f"{label}: pack {pack} is not in {self.storage.url}; run verify") from None
        except CorruptData as error:
            raise CorruptData(f"{label}: {error}; run verify") from error

    def _deliver(
        self, job: Job, stored: memoryview, out: memoryview | None, known: Mapping[bytes, memoryview]
    ) -> memoryview:
        payload, raw = self._decoded(job.location, stored, None if job.direct else out, known, job.wish.label)
        if job.wish.deliver is not None:
            job.wish.deliver(raw)
        if job.wish.relay is not None:
            job.wish.relay(job.location, payload, raw)
        return raw

    def _deliver_pair(self, job: Job, stored: memoryview, below: memoryview) -> None:
        out, (base,) = job.out, job.bases
        assert out is not None
        try:
            payload, base_payload = self.payloads.opened(job.location, stored), self.payloads.opened(base, below)
            self.payloads.decode_with(job.location, payload, out, Encoded(base.codec, base_payload))
        except CorruptData:  # one after the other, which says which of them is damaged
            _, raw = self._decoded(base, below, None, {}, job.wish.label)
            self._deliver(job, stored, out, {base.digest: raw})

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
        with _locating_damage(location, label):
            payload = self.payloads.opened(location, stored)
            bases = [known[base] for base in location.bases]
            return payload, self.payloads.decode(location, payload, out, bases, checked=checked)


@contextmanager
def _locating_damage(location: ChunkLocation, label: str) -> Iterator[None]:
    """Damage names where it was met."""
    try:
        yield
    except CorruptData as error:
        where = f"pack {location.pack} at offset {location.offset}"
        what = f"a chunk in {where}, or one that it rests on," if location.bases else f"a chunk in {where}"
        raise CorruptData(f"{label}: {what} is damaged: {error}; run verify") from error


def _destination(job: Job, take: Callable[[int], memoryview]) -> memoryview:
    if job.direct and (out := job.out) is not None:
        return out
    return take(job.location.length) if job.scratched else memoryview(bytearray(job.location.length))
