import os
import re
import signal
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.catalog.records import NewCommit
from ckptstore.chunkstore import ChunkStore, Fetch, Piece, jobs, reader, windows, writer
from ckptstore.chunkstore.deriving import encode
from ckptstore.chunkstore.grouping import groups
from ckptstore.errors import (
    BudgetTooSmall,
    CkptStoreError,
    CorruptData,
    MissingData,
    StateError,
    StepExists,
    StorageError,
)
from ckptstore.format import packs
from ckptstore.format.version import StoreConfig
from ckptstore.storage.local import LocalStorage
from ckptstore.testing.faults import FailNth, Latency, Recording
from ckptstore.testing.memory import peak_of

CONFIG = StoreConfig(format=1, id="s" * 32, digest="xxh3_128", chunk_bytes=4096, created=1.0)


def a_store(place, wrap=lambda storage: storage):
    catalog = open_catalog(sqlite_url(place / "catalog.sqlite"), create=True)
    return ChunkStore(wrap(LocalStorage(place / "store", create=True)), catalog, CONFIG)


@pytest.fixture
def chunks(tmp_path):
    return a_store(tmp_path)


def put(chunks, data, step=0, *, copied=True, refuse=None):
    """Write chunks and commit them; their digests, the session's own packs, and the others relied on."""
    session = chunks.catalog.open_session(60)
    with chunks.writer(session, refuse=refuse) as sink:
        digests = sink.write(Piece(memoryview(chunk), copied) for chunk in data)
        own, needs = sink.finish()
    assert all(needs[pack.name] == sum(chunk.length for chunk in pack.chunks) for pack in own)
    name = f"{step:032x}"
    chunks.catalog.reserve(session, (), document=name)
    numbers: dict = {"leaves": 0, "logical_bytes": 0, "new_bytes": 0}
    fields: dict = {"metadata": {}, "content": name.encode(), "document": name, "manifest": b"", "parent": None}
    chunks.catalog.commit(
        session, NewCommit(id=name, run="main", step=step, packs=own, needs=needs, **fields, **numbers)
    )
    return digests, own, others(own, needs)


def others(own, needs):
    return sorted(needs.keys() - {pack.name for pack in own})


def get(chunks, digests, sizes, **options):
    out = [bytearray(size) for size in sizes]
    wishes = [Fetch(digest, len(to), "a leaf", out=memoryview(to)) for digest, to in zip(digests, out, strict=True)]
    chunks.fetch(wishes, **options)
    return [bytes(to) for to in out]


class Lying:
    """A catalog that says of every chunk that it lies at one place."""

    def __init__(self, location):
        self.location = location

    def locate(self, digests):
        return dict.fromkeys(digests, self.location)


DATA = st.lists(st.binary(max_size=400) | st.integers(0, 5000).map(bytes), max_size=12)


@settings(max_examples=15)
@given(data=DATA, copied=st.booleans())
def test_what_goes_in_comes_out(tmp_path_factory, data, copied):
    chunks = a_store(tmp_path_factory.mktemp("chunks"))
    digests, own, used = put(chunks, data, copied=copied)
    sizes = [len(chunk) for chunk in data]
    assert get(chunks, digests, sizes) == data
    delivered = {}
    lock = threading.Lock()

    def deliver(number):
        def take(view):
            with lock:
                delivered[number] = bytes(view)

        return take

    wishes = [Fetch(digest, len(data[n]), "a leaf", deliver=deliver(n)) for n, digest in enumerate(digests)]
    chunks.fetch(wishes)
    assert delivered == dict(enumerate(data))
    assert used == []
    assert sum(len(pack.chunks) for pack in own) == len(set(data))


def test_a_content_is_stored_once(chunks):
    shared, fresh = os.urandom(1000), os.urandom(1000)
    _, (first,), _ = put(chunks, [shared, shared])
    digests, (second,), used = put(chunks, [shared, fresh, shared], step=1)
    assert used == [first.name]
    assert [location.digest for location in second.chunks] == [digests[1]]
    assert digests[0] == digests[2]


def test_one_session_stores_a_content_once_however_often_it_writes(chunks, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 3000)
    data = [os.urandom(1000) for _ in range(6)]
    session = chunks.catalog.open_session(60)
    with chunks.writer(session) as sink:
        first = sink.write(Piece(memoryview(chunk), copied=False) for chunk in data)
        again = sink.write(Piece(memoryview(chunk), copied=True) for chunk in reversed(data))
        own, needs = sink.finish()
    assert again == first[::-1]
    assert sorted(location.digest for pack in own for location in pack.chunks) == sorted(first)
    assert others(own, needs) == []


class Lent:
    """Bytes that change as soon as their loan rests or ends."""

    def __init__(self, data: bytes) -> None:
        self.data, self.kept, self.ended = bytearray(data), 0, 0
        self._before = data

    def keep(self) -> memoryview:
        assert not self.ended
        self.kept += 1
        return memoryview(self._before)

    def rest(self) -> None:
        assert not self.ended
        self.data[:] = bytes(len(self.data))

    def end(self) -> None:
        self.data[:] = bytes(len(self.data))
        self.ended += 1

    def spoilt(self) -> Exception:
        return StateError("it changed while it was on loan")


def test_what_is_on_loan_is_kept_only_if_it_is_new(chunks, monkeypatch):
    monkeypatch.setattr(windows, "_LOANS", 2500)
    data = [os.urandom(1000) for _ in range(9)]
    put(chunks, data[:4])
    lent = [Lent(chunk) for chunk in data]
    session = chunks.catalog.open_session(60)
    with chunks.writer(session) as sink:
        digests = sink.write(Piece(memoryview(loan.data), copied=False, loan=loan) for loan in lent)
        own, _ = sink.finish()
    assert [loan.kept for loan in lent] == [0] * 4 + [1] * 5
    assert [loan.ended for loan in lent] == [1] * 9
    assert [location.digest for pack in own for location in pack.chunks] == digests[4:]
    assert digests == [chunks.digest.compute(chunk) for chunk in data]


def test_what_changed_while_it_was_on_loan_is_not_stored_under_the_digest_that_it_had(chunks):
    lent = [Lent(os.urandom(1000)) for _ in range(3)]
    lent[1]._before = bytes(1000)
    with chunks.writer(chunks.catalog.open_session(60)) as sink, pytest.raises(StateError, match="on loan"):
        sink.write(Piece(memoryview(loan.data), copied=False, loan=loan) for loan in lent)
    assert list(chunks.storage.list("packs/")) == []


def test_loans_end_soon(chunks, monkeypatch):
    monkeypatch.setattr(windows, "_LOANS", 2500)
    lent = [Lent(os.urandom(1000)) for _ in range(9)]

    def lending():
        for place, loan in enumerate(lent):
            assert sum(not earlier.ended for earlier in lent[:place]) < 3
            yield Piece(memoryview(loan.data), copied=False, loan=loan)

    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        assert len(sink.write(lending())) == 9


def test_what_is_likely_new_is_copied_before_the_catalog_is_asked(chunks, monkeypatch):
    monkeypatch.setattr(windows, "_LOANS", 2500)
    data = [os.urandom(1000) for _ in range(9)]
    put(chunks, data[:2])
    lent = [Lent(chunk) for chunk in data]
    asked: list[int] = []
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        pin = sink._claims.pin

        def watched(digests):
            assert [loan.ended for loan in lent] == [1] * 9
            asked.append(len(digests))
            return pin(digests)

        monkeypatch.setattr(type(sink._claims), "pin", lambda _, digests: watched(digests))
        digests = sink.write(Piece(memoryview(loan.data), copied=False, loan=loan, likely_new=True) for loan in lent)
        own, _ = sink.finish()
    assert asked == [9]
    assert [loan.kept for loan in lent] == [1] * 9
    assert digests == [chunks.digest.compute(chunk) for chunk in data]
    assert [location.digest for pack in own for location in pack.chunks] == digests[2:]


def test_what_is_not_committed_is_not_relied_on(chunks):
    content = os.urandom(1000)
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write([Piece(memoryview(content), copied=False)])
        (pending,), _ = sink.finish()
    digests, (own,), used = put(chunks, [content])
    assert used == []
    assert own.name != pending.name
    chunks.storage.delete(packs.pack_key(pending.name))
    assert get(chunks, digests, [1000]) == [content]


def test_nothing_new_is_no_pack(chunks):
    put(chunks, [b"a" * 1000])
    before = list(chunks.storage.list(""))
    assert put(chunks, [b"a" * 1000], step=1)[1] == []
    assert list(chunks.storage.list("")) == before


def test_packs_close_at_their_size(chunks, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 10_000)
    data = [os.urandom(3000) for _ in range(20)]
    digests, own, _ = put(chunks, data)
    assert len(own) == 7
    assert {chunks.storage.head(packs.pack_key(pack.name)).size for pack in own} == {pack.size for pack in own}
    assert get(chunks, digests, [3000] * 20) == data


def test_a_chunk_beyond_the_target_has_a_pack_to_itself(chunks, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 1000)
    data = [os.urandom(size) for size in (100, 5000, 100)]
    digests, own, _ = put(chunks, data)
    assert [[location.raw_length for location in pack.chunks] for pack in own] == [[100], [5000], [100]]
    assert get(chunks, digests, [100, 5000, 100]) == data


def test_progress_adds_up(chunks):
    data = [os.urandom(100), bytes(5000), b"", os.urandom(100)]
    taken: list[int] = []
    with chunks.writer(chunks.catalog.open_session(60), advance=taken.append) as sink:
        sink.write(Piece(memoryview(chunk), copied=False) for chunk in data)
        sink.finish()
    assert sum(taken) == 5200
    digests, _, _ = put(chunks, data)
    given_back: list[int] = []
    get(chunks, digests, [len(chunk) for chunk in data], advance=given_back.append)
    assert sum(given_back) == 5200


LIMITS = [
    (windows, "_BYTES"),
    (windows, "COPIES"),
    (windows, "CHUNKS"),
    (writer, "_BATCH_BYTES"),
    (writer, "_BATCH_CHUNKS"),
]


@pytest.mark.parametrize(("module", "limit"), LIMITS, ids=lambda given: given if isinstance(given, str) else "")
def test_windows_and_batches_lose_nothing(chunks, monkeypatch, module, limit):
    monkeypatch.setattr(module, limit, 2)
    data = [os.urandom(50) for _ in range(20)]
    digests, _, _ = put(chunks, data)
    assert get(chunks, digests, [50] * 20) == data


def test_all_threads_encode_one_batch(chunks, monkeypatch):
    monkeypatch.setattr(writer, "_WORKERS", 4)
    monkeypatch.setattr(windows, "COPIES", 4000)
    together = threading.Barrier(4, timeout=20)

    def watched(*args, **options):
        together.wait()
        return encode(*args, **options)

    monkeypatch.setattr(writer, "encode", watched)
    data = [bytes([number]) * 1000 for number in range(8)]
    digests, own, _ = put(chunks, data, copied=False)
    assert get(chunks, digests, [1000] * 8) == data
    assert [frame.digest for frame in own[0].chunks] == digests


def test_a_batch_is_encoded_while_the_one_before_goes_into_its_pack(chunks, monkeypatch):
    monkeypatch.setattr(windows, "COPIES", 1000)
    begun: list[int] = []
    second, append = threading.Event(), writer.ChunkWriter.append

    def watched(*args, **options):
        begun.append(1)
        if len(begun) == 2:
            second.set()
        return encode(*args, **options)

    def appended(sink, chunk, live):
        assert second.wait(20), "nothing is encoded meanwhile"
        append(sink, chunk, live)

    monkeypatch.setattr(writer, "encode", watched)
    monkeypatch.setattr(writer.ChunkWriter, "append", appended)
    data = [bytes([number]) * 1000 for number in range(4)]
    digests, own, _ = put(chunks, data, copied=False)
    assert get(chunks, digests, [1000] * 4) == data
    assert [frame.digest for frame in own[0].chunks] == digests


def test_no_more_than_two_batches_are_encoded_ahead(chunks, monkeypatch):
    monkeypatch.setattr(windows, "COPIES", 1000)
    most, ahead, append = [0], [0], writer.ChunkWriter.append

    def watched(*args, **options):
        ahead[0] += 1
        most[0] = max(most[0], ahead[0])
        return encode(*args, **options)

    def appended(sink, chunk, live):
        time.sleep(0.01)
        ahead[0] -= 1
        append(sink, chunk, live)

    monkeypatch.setattr(writer, "encode", watched)
    monkeypatch.setattr(writer.ChunkWriter, "append", appended)
    put(chunks, [bytes([number]) * 1000 for number in range(20)], copied=False)
    assert most == [2]


def test_what_fails_to_be_encoded_is_reported(chunks, monkeypatch):
    monkeypatch.setattr(windows, "COPIES", 1000)

    def failing(group, *args, **options):
        if bytes(group[0][1].data[:1]) == b"\x03":
            raise MemoryError("no room")
        return encode(group, *args, **options)

    monkeypatch.setattr(writer, "encode", failing)
    with pytest.raises(MemoryError, match="no room"):
        put(chunks, [bytes([number]) * 1000 for number in range(8)], copied=False)


def test_windows_grow(chunks, monkeypatch):
    monkeypatch.setattr(windows, "_FIRST_BYTES", 100)
    monkeypatch.setattr(windows, "_BYTES", 350)
    asked: list[int] = []
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        pin = sink._claims.pin

        def watched(_, digests):
            asked.append(50 * len(digests))
            return pin(digests)

        monkeypatch.setattr(type(sink._claims), "pin", watched)
        sink.write(Piece(memoryview(b"%050d" % number), copied=False) for number in range(30))
        sink.finish()
    assert asked == [100, 200, 350, 350, 350, 150]


def windows_of(monkeypatch, size):
    """Of so many bytes, and packs that are put before they are full from 4,000 on."""
    monkeypatch.setattr(windows, "_FIRST_BYTES", size)
    monkeypatch.setattr(windows, "_BYTES", size)
    monkeypatch.setattr(writer, "_SOON", 4000)


@pytest.mark.parametrize("like", ["steady", "likely new"])
def test_what_is_new_is_put_while_the_rest_is_looked_at(chunks, monkeypatch, like):
    """At once when it was to be expected and what looked steady was so, and whatever it was once nothing new comes."""
    known = [os.urandom(100) for _ in range(20)]
    _, old, _ = put(chunks, known)
    windows_of(monkeypatch, 5200)
    stored: list[int] = []

    def wait():
        deadline = time.monotonic() + 10
        while not stored and time.monotonic() < deadline:
            stored.extend(info.size for info in chunks.storage.list("packs/") if old[0].name not in info.key)
            time.sleep(0.01)

    def pieces():
        yield Piece(memoryview(os.urandom(5000)), copied=False, likely_new=like == "likely new")
        for number, chunk in enumerate(known * 4):
            if number == (2 if like == "likely new" else 54):  # in the second window, and in the third
                wait()
            yield Piece(memoryview(chunk), copied=False)

    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write(pieces())
        own, _ = sink.finish()
    assert stored == [pack.size for pack in own]


def test_a_pack_is_put_when_nothing_new_came_where_it_was_likely(chunks, monkeypatch):
    known = [os.urandom(1000) for _ in range(2)]
    put(chunks, known)
    windows_of(monkeypatch, 1000)
    data = [os.urandom(5000), *known, os.urandom(5000)]
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write(Piece(memoryview(chunk), copied=False, likely_new=True) for chunk in data)
        own, _ = sink.finish()
    assert [len(pack.chunks) for pack in own] == [1, 1]


def test_packs_are_full_where_what_looked_steady_was_not(chunks, monkeypatch):
    known = os.urandom(1000)
    put(chunks, [known])
    windows_of(monkeypatch, 6000)
    data = [chunk for _ in range(4) for chunk in (os.urandom(5000), known)]
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write(Piece(memoryview(chunk), copied=False) for chunk in data)
        own, _ = sink.finish()
    assert [len(pack.chunks) for pack in own] == [4]


def test_packs_are_full_while_more_is_likely_new(chunks, monkeypatch):
    windows_of(monkeypatch, 200)
    data = [os.urandom(5000) for _ in range(4)]
    with chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write(Piece(memoryview(chunk), copied=False, likely_new=True) for chunk in data)
        own, _ = sink.finish()
    assert [len(pack.chunks) for pack in own] == [4]


@given(st.lists(st.integers(0, 50)), st.integers(1, 100), st.integers(1, 5))
def test_groups(sizes, most_bytes, most_items):
    found = list(groups(sizes, lambda size: size, most_bytes, most_items))
    assert [size for group in found for size in group] == sizes
    assert all(group for group in found)
    for group in found:
        assert len(group) <= most_items
        assert sum(group[:-1]) < most_bytes


def test_a_refused_writer_stores_nothing(chunks):
    put(chunks, [b"known" * 100])
    before = list(chunks.storage.list(""))
    refusal = StepExists("taken")
    put(chunks, [b"known" * 100], step=1, refuse=refusal)
    with pytest.raises(StepExists, match="taken"):
        put(chunks, [b"new" * 100], step=2, refuse=refusal)
    assert list(chunks.storage.list("")) == before


@pytest.mark.parametrize("budget", [3000, 10_000, 1 << 20])
def test_a_budget_is_enough_when_the_largest_chunk_fits(chunks, budget):
    data = [os.urandom(size) for size in (3000, 10, 2000, 3000, 1)] + [bytes(2900)]
    digests, _, _ = put(chunks, data)
    taken = []
    wishes = [
        Fetch(d, len(c), "", deliver=lambda v: taken.append(bytes(v))) for d, c in zip(digests, data, strict=True)
    ]
    chunks.fetch(wishes, budget=budget)
    assert sorted(taken) == sorted(data)


def test_a_budget_below_one_chunk_is_refused(chunks):
    digests, _, _ = put(chunks, [os.urandom(3000)])
    with pytest.raises(BudgetTooSmall, match="2999 bytes, but one chunk needs 3000"):
        chunks.fetch([Fetch(digests[0], 3000, "", deliver=print)], budget=2999)
    assert get(chunks, digests, [3000], budget=1) != []  # straight into the destination, nothing is held


def later_peak_of(work):
    """Beside what is cached at the first time, or once when more threads than before code at the same moment."""
    work()
    return min(peak_of(work) for _ in range(2))


SIZE = 256 << 10
NOISE = 512 << 10
"""What the catalog's queries and the threads hold."""


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("random_bytes", [SIZE, SIZE // 4], ids=["raw", "zstd"])
def test_a_fetch_holds_no_more_than_its_budget(chunks, monkeypatch, random_bytes, workers):
    monkeypatch.setattr(reader, "_WORKERS", workers)
    data = [os.urandom(random_bytes) + bytes(SIZE - random_bytes) for _ in range(32)]
    digests, _, _ = put(chunks, data)
    wishes = [Fetch(digest, SIZE, "", deliver=lambda _: time.sleep(0.0002)) for digest in digests]
    for budget in (2 * SIZE, 5 * SIZE):
        assert later_peak_of(lambda budget=budget: chunks.fetch(wishes, budget=budget)) < budget + NOISE


@pytest.mark.parametrize("copied", [True, False])
def test_a_writer_holds_a_few_packs_and_a_window_of_copies(tmp_path, monkeypatch, copied):
    target, window = 4 * SIZE, 2 * SIZE
    monkeypatch.setattr(packs, "TARGET_BYTES", target)
    monkeypatch.setattr(windows, "COPIES", window)
    chunks = a_store(tmp_path, lambda storage: Latency(storage, 0.03))
    held = [] if copied else [os.urandom(SIZE) for _ in range(64)]

    def write():
        with chunks.writer(chunks.catalog.open_session(60)) as sink:
            fresh = (os.urandom(SIZE) for _ in range(64)) if copied else held
            sink.write(Piece(memoryview(chunk), copied) for chunk in fresh)
            sink.finish()

    assert later_peak_of(write) < NOISE + (3 * target + window if copied else 0)


def test_near_chunks_are_read_together(tmp_path):
    chunks = a_store(tmp_path, Recording)
    data = [os.urandom(100) for _ in range(300)]
    digests, _, _ = put(chunks, data)
    before = chunks.storage.operations["get_ranges"]
    assert get(chunks, digests, [100] * 300) == data
    assert chunks.storage.operations["get_ranges"] == before + 1


@pytest.mark.parametrize("content", [os.urandom(3000), bytes(3000)], ids=["raw", "zstd"])
def test_a_flipped_bit_is_reported_and_not_returned(chunks, content):
    digests, (pack,), _ = put(chunks, [content])
    place = chunks.storage.root / packs.pack_key(pack.name)
    location = pack.chunks[0]
    for bit in range(0, 8 * location.length, 7 if location.codec else 97):
        damaged = bytearray(place.read_bytes())
        damaged[location.offset + bit // 8] ^= 1 << bit % 8
        place.chmod(0o644)
        place.write_bytes(damaged)
        try:
            assert get(chunks, digests, [3000]) == [content]  # zstd has bits that mean nothing
            assert location.codec == 1
        except CorruptData as error:
            assert re.search(f"a leaf: .*{pack.name}.*run verify", str(error))
        damaged[location.offset + bit // 8] ^= 1 << bit % 8
        place.write_bytes(damaged)
    assert get(chunks, digests, [3000]) == [content]


@pytest.mark.parametrize("content", [os.urandom(3000), bytes(3000)], ids=["raw", "zstd"])
def test_a_pack_that_is_brought_back_is_read_anew(chunks, content):
    digests, (pack,), _ = put(chunks, [content, b"other" * 100])
    place = chunks.storage.root / packs.pack_key(pack.name)
    whole, location = place.read_bytes(), pack.chunks[0]
    place.chmod(0o644)
    place.write_bytes(whole[: location.offset] + bytes(8) + b"~" * 8 + whole[location.offset + 16 :])
    assert get(chunks, digests[1:], [500]) == [b"other" * 100]
    with pytest.raises(CorruptData):
        get(chunks, digests, [3000, 500])
    assert get(chunks, digests[1:], [500]) == [b"other" * 100]
    place.with_name("copy").write_bytes(whole)
    place.with_name("copy").rename(place)
    assert get(chunks, digests, [3000, 500]) == [content, b"other" * 100]


def test_what_is_missing_is_reported(chunks):
    digests, (pack,), _ = put(chunks, [os.urandom(100)])
    chunks.storage.delete(packs.pack_key(pack.name))
    with pytest.raises(MissingData, match=f"a leaf: pack {pack.name}"):
        get(chunks, digests, [100])
    with pytest.raises(MissingData, match="no pack holds its chunk"):
        get(chunks, [b"?" * 16], [100])


def test_a_failed_put_fails_the_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 1000)
    data = [os.urandom(900) for _ in range(10)]
    for number in range(1, 11):
        place = tmp_path / str(number)
        place.mkdir()
        chunks = a_store(place, lambda storage, number=number: FailNth(storage, number, verbs=frozenset({"put"})))
        with pytest.raises(StorageError):
            put(chunks, data)
        assert all(pack.state == "pending" for pack in chunks.catalog.packs())


def test_after_a_failed_put_the_same_data_is_stored_anew(tmp_path):
    data = [os.urandom(900), bytes(900)]
    chunks = a_store(tmp_path, lambda storage: FailNth(storage, 1, verbs=frozenset({"put"}), after=True))
    with pytest.raises(StorageError):
        put(chunks, data)
    digests, own, used = put(chunks, data)
    assert (len(own), used) == (1, [])
    assert get(chunks, digests, [900, 900]) == data


def test_pieces_that_fail_fail_the_writer(chunks, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 1000)
    monkeypatch.setattr(windows, "CHUNKS", 1)

    def pieces():
        for _ in range(5):
            yield Piece(memoryview(os.urandom(900)), copied=True)
        raise OSError("the source is gone")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="the source is gone"), chunks.writer(chunks.catalog.open_session(60)) as sink:
        sink.write(pieces())
    assert set(threading.enumerate()) <= before  # of which others may have ended since
    assert {pack.state for pack in chunks.catalog.packs()} == {"pending"}


@pytest.mark.parametrize("content", [os.urandom(3000), bytes(2500) + os.urandom(500)], ids=["raw", "zstd"])
def test_a_cut_pack_is_reported_and_nothing_is_delivered(chunks, content):
    digests, (pack,), _ = put(chunks, [content])
    location, place = pack.chunks[0], chunks.storage.root / packs.pack_key(pack.name)
    whole = place.read_bytes()
    place.chmod(0o644)
    for length in (0, location.offset, location.offset + 1, location.offset + location.length - 1):
        place.write_bytes(whole[:length])
        wish = Fetch(digests[0], 3000, "a leaf", deliver=lambda _: pytest.fail("delivered"))
        with pytest.raises(CorruptData, match=f"a leaf: .*{pack.name}.*run verify"):
            chunks.fetch([wish])


@pytest.mark.parametrize("content", [os.urandom(3000), bytes(2500) + os.urandom(500)], ids=["raw", "zstd"])
@pytest.mark.parametrize("direct", [True, False], ids=["out", "deliver"])
def test_the_catalog_is_not_believed(chunks, content, direct):
    digests, (pack,), _ = put(chunks, [content, os.urandom(3000)])
    first, second = pack.chunks
    to = {"out": memoryview(bytearray(3000))} if direct else {"deliver": lambda _: pytest.fail("delivered")}
    lies = [{"offset": second.offset}, {"length": first.length - 1}, {"length": first.length + 1}, {"offset": 1 << 40}]
    lies += [{"codec": 1 - first.codec}, {"codec": 99}, {"length": 0}]
    for lie in lies:
        lying: Any = Lying(replace(first, **lie))
        with pytest.raises(CkptStoreError) as caught:
            ChunkStore(chunks.storage, lying, CONFIG).fetch([Fetch(digests[0], 3000, "a leaf", **to)])
        assert re.search("a leaf|upgrade ckptstore", str(caught.value))


@pytest.mark.parametrize("beside", [0, 3], ids=["alone", "beside small ones"])
def test_a_large_chunk_is_verified_too_where_it_was_read(chunks, beside):
    data = [*(os.urandom(100) for _ in range(beside)), os.urandom(jobs.LARGE)]
    sizes = [len(each) for each in data]
    digests, (pack,), _ = put(chunks, data)
    assert get(chunks, digests, sizes) == data
    place = chunks.storage.root / packs.pack_key(pack.name)
    whole = place.read_bytes()
    location = next(chunk for chunk in pack.chunks if chunk.digest == digests[-1])
    place.chmod(0o644)
    damaged = bytearray(whole)
    damaged[location.offset + location.length - 1] ^= 1
    for left, problem in ((damaged, "damaged"), (whole[: location.offset + 7], "short of")):
        place.write_bytes(left)
        with pytest.raises(CorruptData, match=rf"a leaf: .*{pack.name}.*{problem}.*run verify"):
            get(chunks, digests, sizes)
    place.unlink()
    chunks.storage._open_files.forget(str(place))
    with pytest.raises(MissingData, match=rf"a leaf: pack {pack.name} is not in"):
        get(chunks, digests, sizes)


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_a_chunk_may_be_given_on_and_put_where_it_belongs(chunks, size):
    content, relayed, out = os.urandom(size), list[bytes](), bytearray(size)
    (digest,), _, _ = put(chunks, [content])
    wish = Fetch(
        digest,
        size,
        "a leaf",
        out=memoryview(out),
        relay=lambda _, payload, raw: relayed.extend(map(bytes, (payload, raw))),
    )
    chunks.fetch([wish])
    assert out == content
    assert relayed == [content, content]


def test_an_error_of_who_gets_the_bytes_is_raised(chunks):
    digests, _, _ = put(chunks, [os.urandom(100), os.urandom(100)])

    def deliver(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        chunks.fetch([Fetch(digest, 100, "a leaf", deliver=deliver) for digest in digests])


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("end", [KeyError, KeyboardInterrupt])
def test_after_an_error_or_an_interrupt_nothing_more_is_begun(chunks, monkeypatch, end):
    monkeypatch.setattr(jobs, "BATCH_BYTES", 1000)
    digests, _, _ = put(chunks, [os.urandom(1000) for _ in range(400)])
    begun: list[int] = []

    def deliver(_):
        begun.append(1)
        if len(begun) == 1 and end is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)  # who waits for a lock is woken
        elif len(begun) == 1:
            raise KeyError("mine")
        time.sleep(0.01)

    with pytest.raises(end):
        chunks.fetch([Fetch(digest, 1000, "a leaf", deliver=deliver) for digest in digests])
    assert len(begun) < 200


def test_a_damaged_chunk_beside_sound_ones_is_named(chunks, monkeypatch):
    monkeypatch.setattr(packs, "TARGET_BYTES", 4000)
    data = [os.urandom(1000) for _ in range(12)]
    digests, own, _ = put(chunks, data)
    place = chunks.storage.root / packs.pack_key(own[1].name)
    damaged = bytearray(place.read_bytes())
    damaged[own[1].chunks[0].offset] ^= 1
    place.chmod(0o644)
    place.write_bytes(damaged)
    number = digests.index(own[1].chunks[0].digest)
    wishes = [Fetch(d, 1000, f"leaf {n}.", out=memoryview(bytearray(1000))) for n, d in enumerate(digests)]
    with pytest.raises(CorruptData, match=rf"leaf {number}\.: .*{own[1].name}"):
        chunks.fetch(wishes)
    chunks.fetch([wish for wish in wishes if wish.digest != digests[number]])
