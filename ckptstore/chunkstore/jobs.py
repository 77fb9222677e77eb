"""What is to be read: wishes, where they lie and what that rests on, in the order in which it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise, repeat
from typing import TYPE_CHECKING

import msgspec

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.grouping import groups
from ckptstore.chunkstore.needs import Way, decoding_bytes
from ckptstore.errors import CorruptData, MissingData
from ckptstore.format.codecs import DELTA, RAW
from ckptstore.storage.base import GAP

if TYPE_CHECKING:
    from ckptstore.format.codecs.words import Plane

BATCH_BYTES = 8 << 20
_BATCH_CHUNKS = 1024
_FAMILY = 3
"""Chunks: a first moment, the second one and the weight. More may share a base, such as zeros; each family reads it."""
LARGE = 256 << 10
"""From here on a chunk is verified as soon as it is read, while it is in a core's cache."""


class Fetch(msgspec.Struct, frozen=True):  # which Python's collector need not look at if nothing in it leads on
    """A wish for one chunk.

    Attributes:
        digest, size: identity and raw length of the chunk.
        label: what it belongs to, for messages.
        out: where its bytes go, when that is `size` bytes of plain memory; an array where there are many wishes, since
            Python's collector looks at views and not at arrays.
        deliver: otherwise, who gets them, in any thread; the buffer is only valid until the scratch memory settles.
        relay: who gets where the chunk lies, its encoded payload and its bytes, when he stores it again as it is.
    """

    digest: bytes
    size: int
    label: str
    out: memoryview | Plane | None = None
    deliver: Callable[[memoryview], None] | None = None
    relay: Callable[[ChunkLocation, memoryview, memoryview], None] | None = None


class Job(msgspec.Struct, frozen=True):
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
    def out(self) -> memoryview | None:
        """Where its bytes go, when that is plain memory."""
        return None if self.wish.out is None else memoryview(self.wish.out)  # type: ignore[arg-type] # arrays too

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Of a family that has no other."""
        return (self,)

    @property
    def size(self) -> int:
        """Raw bytes."""
        return self.wish.size

    @property
    def scratched(self) -> bool:
        """Whether the payload may lie in memory that is used again."""
        return not self.direct and self.wish.relay is None

    @property
    def unpacked(self) -> bool:
        """Whether its bytes may be decoded to such memory too: they are delivered, and not as they were read."""
        return self.wish.out is None and self.scratched and self.location.codec != RAW.number

    @property
    def paired(self) -> bool:
        """Whether it is a difference that can be decoded together with the one chunk that it rests on."""
        difference = self.location.codec == DELTA and len(self.location.bases) == len(self.bases) == 1
        return difference and self.wish.out is not None and self.wish.relay is None


class Family(msgspec.Struct, frozen=True):
    """Jobs that share what they rest on, so that it is read and decoded once; most jobs are a family of their own.

    Attributes:
        size: raw bytes of the jobs.
        scratch, needed: as of a job, of all together.
    """

    jobs: tuple[Job, ...]
    size: int
    scratch: int
    needed: int


def jobs_for(wishes: Sequence[Fetch], located: Mapping[bytes, ChunkLocation], way: Way) -> list[Job]:
    """A job for each wish, as they lie. Raises MissingData, and CorruptData where the catalog has another size."""
    for wish in wishes:
        if wish.digest not in located:
            raise MissingData(f"{wish.label}: no pack holds its chunk {wish.digest.hex()}; run verify")
        if located[wish.digest].raw_length != wish.size:
            problem = f"holds {located[wish.digest].raw_length} bytes instead of {wish.size}"
            raise CorruptData(f"{wish.label}: its chunk {wish.digest.hex()} {problem}; run verify")
    placed = [(wish, located[wish.digest]) for wish in wishes]
    placed.sort(key=lambda item: (item[1].pack, item[1].offset))
    gaps = [_gap(before, after) for (_, before), (_, after) in pairwise(placed)] if way.copies else repeat(0)
    return [
        _job(wish, location, _below(wish.label, location, located), way, gap)
        for (wish, location), gap in zip(placed, chain([0], gaps), strict=False)
    ]


def families(jobs: Sequence[Job], way: Way, room: int) -> Iterator[Family | Job]:
    """Those that rest on several chunks, with few jobs before them that share these, where all fit into the room.

    What lies between them comes along.
    """
    if all(len(job.bases) < 2 for job in jobs):
        yield from jobs
        return
    family: Family | Job | None = None
    held: set[bytes] = set()
    for number, job in enumerate(jobs):
        joined: Family | Job | None = None
        near = jobs[number : number + _FAMILY - len(family.jobs)] if family else ()
        if family and any(_shares(later, held) for later in near):
            joined = _joined(family, job, [base for base in job.bases if base.digest in held], way)
        if joined is None or joined.needed > room:
            if family is not None:
                yield family
            joined, held = job, set()
        family = joined
        held |= {job.location.digest, *(base.digest for base in job.bases)}
    if family is not None:
        yield family


def batches(found: Sequence[Family | Job], scratch: int) -> Iterator[list[Job]]:
    """Families that begin in one pack, near each other, few enough to have less than `scratch` plus one of them."""
    for _, of_pack in groupby(found, key=lambda family: family.jobs[0].location.pack):
        for near in groups(of_pack, lambda family: family.size, BATCH_BYTES, _BATCH_CHUNKS):
            for some in groups(near, lambda family: family.scratch, max(scratch, 1), _BATCH_CHUNKS):
                yield [job for family in some for job in family.jobs]


def _shares(job: Job, held: set[bytes]) -> bool:
    return len(job.bases) > 1 and not held.isdisjoint(base.digest for base in job.bases)


def _joined(family: Family | Job, job: Job, shared: Iterable[ChunkLocation], way: Way) -> Family:
    scratch = family.scratch + job.scratch - sum(map(way.beneath, shared))
    beside = max(family.needed - family.scratch, job.needed - job.scratch)
    return Family((*family.jobs, job), family.size + job.size, scratch, scratch + beside)


def _job(wish: Fetch, location: ChunkLocation, bases: tuple[ChunkLocation, ...], way: Way, gap: int) -> Job:
    placed = wish.out is not None
    direct = placed and location.codec == RAW.number and location.length == wish.size and not way.sealed
    scratch = way.scratch(location, bases, direct=direct, placed=placed, gap=gap)
    needed = scratch + decoding_bytes((*bases, location))
    alone = direct and wish.relay is None and not way.copies and wish.size >= LARGE
    return Job(wish, location, bases, direct, alone, scratch, needed, way.copies * gap)


def _below(label: str, location: ChunkLocation, located: Mapping[bytes, ChunkLocation]) -> tuple[ChunkLocation, ...]:
    """All that a chunk rests on, each behind what it rests on itself. Raises MissingData, CorruptData."""
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
    for base in found.values():
        if base.raw_length != location.raw_length:  # which nobody writes, and may be large
            problem = f"rests on one of {base.raw_length} bytes, and holds {location.raw_length}"
            raise CorruptData(f"{label}: its chunk {location.digest.hex()} {problem}; run verify")
    return tuple(found.values())


def _gap(before: ChunkLocation, after: ChunkLocation) -> int:
    """Bytes between two chunks that a storage may read too; it does so only where they are few."""
    between = after.offset - (before.offset + before.length)
    return between if before.pack == after.pack and 0 < between <= GAP else 0
