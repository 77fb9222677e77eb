"""What is read later is told to a storage that can begin with it."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore import Fetch, announcing, jobs, reader
from ckptstore.chunkstore.jobs import jobs_for
from ckptstore.chunkstore.needs import Way
from ckptstore.format.packs import pack_key
from ckptstore.storage.local import LocalStorage

GAP = 128 << 10


class Told:
    """A storage that only listens."""

    def __init__(self):
        self.spans = []

    def prefetch(self, key, offset, length):
        self.spans.append((key, offset, offset + length))


@st.composite
def placed(draw):
    """Chunks in two packs, some of which rest on one before them."""
    found: dict[bytes, ChunkLocation] = {}
    ends = {"a": 0, "b": 0}
    for number in range(draw(st.integers(1, 12))):
        pack = draw(st.sampled_from(list(ends)))
        offset = ends[pack] + draw(st.sampled_from([0, 1, GAP, GAP + 1]))
        length = draw(st.integers(1, 1000))
        base = draw(st.sampled_from(list(found))) if found and draw(st.booleans()) else b""
        digest = number.to_bytes(16, "little")
        found[digest] = ChunkLocation(digest, pack, offset, length, 100, 4, base)
        ends[pack] = offset + length
    return found


@given(placed(), st.data())
def test_all_that_is_read_is_told_and_little_beside(found, data):
    wanted = data.draw(st.lists(st.sampled_from(list(found)), min_size=1, unique=True))
    batch = jobs_for([Fetch(digest, 100, "") for digest in wanted], found, Way(sealed=False, copies=0))
    told: Any = Told()
    announcing.announcer(told)(batch)
    places = {place for job in batch for place in (job.location, *job.bases)}
    for place in places:
        holding = [
            span
            for span in told.spans
            if span[0] == pack_key(place.pack) and span[1] <= place.offset and place.offset + place.length <= span[2]
        ]
        assert len(holding) == 1
    for before, after in pairwise(sorted(told.spans)):
        assert before[0] != after[0] or after[1] - before[2] > GAP
    for key, start, end in told.spans:
        inside = sorted((place.offset, place.length) for place in places if pack_key(place.pack) == key)
        inside = [(offset, length) for offset, length in inside if start <= offset < end]
        assert inside[0][0] == start
        assert sum(inside[-1]) == end
        assert all(after[0] - sum(before) <= GAP for before, after in pairwise(inside))


@pytest.fixture
def events(monkeypatch):
    """What the local storage is told and asked, in order: verb, key, start, end."""
    seen: list[Any] = []
    get_ranges, prefetch = LocalStorage.get_ranges, LocalStorage.prefetch

    def reading(self, key, reads):
        seen.extend(("read", key, read.offset, read.offset + len(read.out)) for read in reads)
        get_ranges(self, key, reads)

    def telling(self, key, offset, length):
        seen.append(("told", key, offset, offset + length))
        prefetch(self, key, offset, length)

    monkeypatch.setattr(LocalStorage, "get_ranges", reading)
    monkeypatch.setattr(LocalStorage, "prefetch", telling)
    return seen


def test_chunks_and_what_they_rest_on_are_told_before_they_are_read(tmp_path, events, monkeypatch):
    monkeypatch.setattr(jobs, "BATCH_BYTES", 1)
    monkeypatch.setattr(reader, "_WORKERS", 1)
    before = 0.02 * torch.randn(40 * 8192)
    with ckptstore.open(tmp_path / "store", compression="best", chunk_bytes=32768) as store:
        for step in range(2):
            store.commit({"w": before * (1 + step * 1e-6)}, step=step)
        events.clear()
        assert torch.equal(store.checkout(1)["w"], before * (1 + 1e-6))
    spans = [(number, key, start, end) for number, (verb, key, start, end) in enumerate(events) if verb == "told"]
    reads = [(number, key, start, end) for number, (verb, key, start, end) in enumerate(events) if verb == "read"]
    late = [read for read in reads if not any(holds(span, read) for span in spans)]
    assert {key for _, key, *_ in reads} == {key for _, key, *_ in spans}
    assert len({key for _, key, *_ in spans}) == 2
    assert late == reads[: 2 * announcing.AHEAD]  # each batch reads a chunk and the one that it rests on


def holds(span, read):
    """Whether all that is read was told before."""
    return span[0] < read[0] and span[1] == read[1] and span[2] <= read[2] and read[3] <= span[3]


def test_one_batch_is_read_without_being_told(tmp_path, events):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"w": torch.randn(4096)}, step=0)
        store.checkout(0)
    assert "told" not in {verb for verb, *_ in events}
