"""Which chunks are read and decoded together, since they share what they rest on."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore import Fetch
from ckptstore.chunkstore.jobs import batches, families, jobs_for
from ckptstore.chunkstore.needs import Way
from ckptstore.format.codecs import RAW

SIZE = 16


@st.composite
def located(draw):
    """Chunks in some packs, each of which may rest on up to three before it."""
    found: dict[bytes, ChunkLocation] = {}
    for number in range(draw(st.integers(1, 12))):
        digest = number.to_bytes(SIZE, "little")
        bases = draw(st.lists(st.sampled_from(list(found)), max_size=3, unique=True)) if found else []
        pack, length = str(draw(st.integers(0, 1))), draw(st.integers(1, 50))
        found[digest] = ChunkLocation(digest, pack, 1000 * number, length, 100, 4, b"".join(bases))
    return found


def own(job, way):
    """What a job holds of itself."""
    return job.gap + way.scratch(job.location, (), direct=job.direct, placed=job.wish.out is not None)


@given(located(), st.builds(Way, st.booleans(), st.integers(0, 2)), st.booleans(), st.integers(0, 5000), st.data())
def test_families(found, way, placed, room, data):
    digests = data.draw(st.lists(st.sampled_from(list(found)), min_size=1, unique=True))
    wishes = [Fetch(digest, 100, "", out=memoryview(bytearray(100)) if placed else None) for digest in digests]
    jobs = jobs_for(wishes, found, way)
    made = list(families(jobs, way, room))
    assert [job for family in made for job in family.jobs] == jobs
    for family in made:
        held, scratch = set[bytes](), 0
        for place, job in enumerate(family.jobs):
            fresh = [base for base in job.bases if base.digest not in held]
            near = jobs[jobs.index(job) :][: 3 - place]
            assert not held or any(len(one.bases) > 1 and held & {base.digest for base in one.bases} for one in near)
            scratch += own(job, way) + sum(way.beneath(base) for base in fresh)
            held |= {job.location.digest, *(base.digest for base in job.bases)}
        assert family.scratch == scratch
        assert family.size == 100 * len(family.jobs)
        assert family.needed >= family.scratch
        assert len(family.jobs) == 1 or family.needed <= room
        assert len(family.jobs) <= 3


@given(located(), st.integers(0, 5000))
def test_who_shares_is_not_parted_where_there_is_room(found, scratch):
    jobs = jobs_for([Fetch(digest, 100, "") for digest in found], found, Way(sealed=False, copies=0))
    made = list(families(jobs, Way(sealed=False, copies=0), 1 << 30))
    for before, after in pairwise(made):
        held = {place.digest for job in before.jobs for place in (job.location, *job.bases)}
        first = after.jobs[0]
        near = jobs[jobs.index(first) :][: 3 - len(before.jobs)]
        assert all(len(one.bases) < 2 or held.isdisjoint(base.digest for base in one.bases) for one in near)
    tasks = list(batches(made, scratch))
    assert [job for task in tasks for job in task] == jobs
    for family in made:
        assert any({id(job) for job in family.jobs} <= {id(job) for job in task} for task in tasks)


def test_what_is_raw_shares_nothing():
    one, two = (ChunkLocation(bytes([number]) * SIZE, "0", number, 9, 9, RAW.number) for number in range(2))
    jobs = jobs_for(
        [Fetch(each.digest, 9, "") for each in (one, two)], {one.digest: one, two.digest: two}, Way(False, 0)
    )
    assert [len(family.jobs) for family in families(jobs, Way(False, 0), 1 << 30)] == [1, 1]
