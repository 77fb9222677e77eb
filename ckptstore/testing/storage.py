"""What every storage must do, as a pytest class::

    class TestMine(StorageConformance):
        @pytest.fixture
        def storage(self):
            return MyStorage(...)

The fixture gives a storage that holds nothing.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TypeVar

import pytest

from ckptstore.errors import CorruptData, InvalidArgument, ObjectExists, ObjectNotFound
from ckptstore.format.buffers import Buffer
from ckptstore.storage.base import RangeRead, Storage

DATA = bytes(range(256)) * 64
T = TypeVar("T")

KEYS = (
    "ckptstore.json",
    "packs/ab/0123456789abcdef.pack",
    "manifests/exp%20%7/100.manifest",
    "a/b.c/d-e_f/h",
    "percent%20/%/%25",
    ".hidden/.file",
    "UPPER/upper",
    "n" * 200,
)
NOT_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a\0b",
    "a\\b",
    "a b",
    "é",
    "a?b",
    "a#b",
)


class StorageConformance:
    """The contract of `ckptstore.storage.base.Storage`.

    Attributes:
        racing_puts_lose: of several writers racing for one key, all but one get ObjectExists. A storage without
            conditional writes sets it to False; that is safe only as long as nobody else writes the same key.
        hides_parts: an object that is being written is not seen. A storage that shows it sets it to False; that is safe
            where nobody asks for an object before its writer has announced it.
        many: how many objects are listed at once; more than a page.
    """

    racing_puts_lose = True
    hides_parts = True
    many = 1200

    @pytest.fixture
    def storage(self) -> Storage:
        """An empty storage."""
        raise NotImplementedError

    # put and get

    @pytest.mark.parametrize("key", KEYS)
    def test_round_trip(self, storage: Storage, key: str) -> None:
        storage.put(key, [DATA])
        assert storage.get(key) == DATA
        assert read(storage, key, 3, 5) == DATA[3:8]
        assert storage.head(key).key == key
        assert keys(storage) == {key}

    @pytest.mark.parametrize("key", NOT_KEYS)
    def test_what_is_no_key_is_refused(self, storage: Storage, key: str) -> None:
        for act in (
            lambda: storage.put(key, [DATA]),
            lambda: storage.get(key),
            lambda: storage.get_ranges(key, []),
            lambda: storage.head(key),
            lambda: storage.delete(key),
        ):
            with pytest.raises(InvalidArgument):
                act()
        assert keys(storage) == set()

    @pytest.mark.parametrize("parts", [[], [b""], [b"", bytearray(), memoryview(b"")]])
    def test_empty_object(self, storage: Storage, parts: list[Buffer]) -> None:
        storage.put("empty", parts)
        assert storage.get("empty") == b""
        assert storage.head("empty").size == 0
        assert keys(storage) == {"empty"}

    def test_parts_of_every_kind_are_joined(self, storage: Storage) -> None:
        matrix = memoryview(bytes(range(12))).cast("B", (3, 4))
        words = memoryview(bytes(range(16))).cast("I")
        storage.put("parts", [b"ab", b"", bytearray(b"cd"), memoryview(b"efgh")[1:3], matrix, words])
        assert storage.get("parts") == b"abcdfg" + bytes(range(12)) + bytes(range(16))

    def test_more_parts_than_one_system_call_takes(self, storage: Storage) -> None:
        parts = [number.to_bytes(3, "big") for number in range(5000)]
        storage.put("many", parts)
        assert storage.get("many") == b"".join(parts)

    def test_large_object(self, storage: Storage) -> None:
        parts = [bytes([number]) * ((5 << 20) + number) for number in range(5)]
        storage.put("large", parts)
        assert storage.head("large").size == sum(map(len, parts))
        assert storage.get("large") == b"".join(parts)

    def test_nothing_is_overwritten(self, storage: Storage) -> None:
        storage.put("a/key", [DATA])
        with pytest.raises(ObjectExists, match="a/key"):
            storage.put("a/key", [b"other"])
        assert storage.get("a/key") == DATA
        assert keys(storage) == {"a/key"}

    # ranges

    def test_ranges(self, storage: Storage) -> None:
        storage.put("key", [DATA])
        spans = [(700, 100), (0, 10), (5, 20), (10, 10), (5, 20), (len(DATA) - 1, 1), (300, 0), (0, len(DATA))]
        reads = [RangeRead(offset, memoryview(bytearray(length))) for offset, length in spans]
        storage.get_ranges("key", reads)
        assert [bytes(read.out) for read in reads] == [DATA[offset : offset + length] for offset, length in spans]

    def test_no_ranges(self, storage: Storage) -> None:
        storage.put("key", [DATA])
        storage.get_ranges("key", [])

    def test_many_ranges(self, storage: Storage) -> None:
        storage.put("key", [DATA])
        reads = [RangeRead(offset, memoryview(bytearray(2))) for offset in range(0, len(DATA), 4)]
        storage.get_ranges("key", reads)
        assert b"".join(bytes(read.out) for read in reads) == bytes(byte for byte in DATA if byte % 4 < 2)

    def test_ranges_into_slices_touch_nothing_else(self, storage: Storage) -> None:
        storage.put("key", [DATA])
        target = bytearray(b"." * 30)
        view = memoryview(target)
        storage.get_ranges("key", [RangeRead(0, view[5:10]), RangeRead(5, view[20:25])])
        assert target == b"." * 5 + DATA[:5] + b"." * 10 + DATA[5:10] + b"." * 5

    @pytest.mark.parametrize("offset", [len(DATA) - 1, len(DATA), len(DATA) + 1000])
    def test_range_past_the_end_is_corrupt_data(self, storage: Storage, offset: int) -> None:
        storage.put("a/key", [DATA])
        with pytest.raises(CorruptData, match=f"a/key.* {offset} "):
            read(storage, "a/key", offset, 2)

    # what is there and what is not

    def test_head(self, storage: Storage) -> None:
        before = time.time()
        storage.put("a/key", [DATA])
        info = storage.head("a/key")
        assert (info.key, info.size) == ("a/key", len(DATA))
        assert abs(info.modified - before) < 600
        [listed] = storage.list("a/key")
        assert (listed.key, listed.size) == (info.key, info.size)
        assert abs(listed.modified - info.modified) < 1  # HTTP's headers have whole seconds

    @pytest.mark.parametrize("key", ["gone", "folder", "folder/gone", "folder/key/below"])
    def test_missing_object(self, storage: Storage, key: str) -> None:
        storage.put("folder/key", [DATA])
        for act in (storage.get, storage.head, lambda key: read(storage, key, 0, 1)):
            with pytest.raises(ObjectNotFound, match=key):
                act(key)

    def test_delete_what_is_not_there(self, storage: Storage) -> None:
        storage.put("folder/key", [DATA])
        for key in ("gone", "folder/gone", "gone/gone"):
            storage.delete(key)
        assert storage.get("folder/key") == DATA

    def test_delete(self, storage: Storage) -> None:
        storage.put("a/key", [DATA])
        storage.put("a/other", [DATA])
        assert read(storage, "a/key", 0, 1) == DATA[:1]
        storage.delete("a/key")
        storage.delete("a/key")
        for act in (storage.get, storage.head, lambda key: read(storage, key, 0, 1)):
            with pytest.raises(ObjectNotFound):
                act("a/key")
        assert keys(storage) == {"a/other"}

    def test_deleted_key_can_be_put_again(self, storage: Storage) -> None:
        storage.put("key", [DATA])
        read(storage, "key", 0, 1)
        storage.delete("key")
        storage.put("key", [b"other"])
        assert storage.get("key") == read(storage, "key", 0, 5) == b"other"

    # listing

    def test_list_nothing(self, storage: Storage) -> None:
        assert keys(storage) == keys(storage, "packs/") == keys(storage, "none/at/all") == set()

    def test_list_by_prefix(self, storage: Storage) -> None:
        for key in ("packs/ab/1", "packs/ab/2", "packs/cd/1", "packs.json", "manifests/packs/1"):
            storage.put(key, [DATA])
        assert keys(storage, "packs/") == {"packs/ab/1", "packs/ab/2", "packs/cd/1"}
        assert keys(storage, "packs/ab") == {"packs/ab/1", "packs/ab/2"}
        assert keys(storage, "packs") == {"packs/ab/1", "packs/ab/2", "packs/cd/1", "packs.json"}
        assert keys(storage, "packs/ab/1") == {"packs/ab/1"}
        assert keys(storage, "packs/ab/1/") == keys(storage, "acks/") == set()
        assert len(keys(storage)) == 5

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", "a/../b"])
    def test_list_does_not_leave_the_root(self, storage: Storage, prefix: str) -> None:
        with pytest.raises(InvalidArgument):
            list(storage.list(prefix))

    def test_list_thousands(self, storage: Storage) -> None:
        expected = {f"packs/{number % 16:x}/{number}" for number in range(self.many)}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: storage.put(key, [b"x"]), expected))
        found = [info.key for info in storage.list("packs/")]
        assert len(found) == len(expected)
        assert set(found) == expected

    def test_list_while_others_write_and_delete(self, storage: Storage) -> None:
        storage.put("packs/kept", [DATA])
        stop = Event()

        def churn(worker: int) -> None:
            for number in range(10_000):
                storage.put(f"packs/{worker}/{number}", [DATA])
                storage.delete(f"packs/{worker}/{number}")
                if stop.is_set():
                    return

        with ThreadPoolExecutor(2) as pool:
            churning = [pool.submit(churn, worker) for worker in range(2)]
            try:
                for _ in range(30):
                    found = {info.key: info.size for info in storage.list("packs/")}
                    assert found["packs/kept"] == len(DATA)
                    assert set(found.values()) == {len(DATA)}
            finally:
                stop.set()
            for future in churning:
                future.result()

    # many at once

    def test_concurrent_puts_of_different_keys(self, storage: Storage) -> None:
        def put(number: int) -> None:
            storage.put(f"new/folder/{number}", [b"%02d" % number * 500] * 3)

        together(put, 16)
        for number in range(16):
            assert storage.get(f"new/folder/{number}") == b"%02d" % number * 1500

    def test_racing_puts_of_one_key(self, storage: Storage) -> None:
        def put(number: int) -> bool:
            try:
                storage.put(f"new/{attempt}", [bytes([number]) * 100_000] * 4)
            except ObjectExists:
                return False
            return True

        for attempt in range(5):
            won = [number for number, wins in enumerate(together(put, 8)) if wins]
            stored = storage.get(f"new/{attempt}")
            assert stored in [bytes([number]) * 400_000 for number in won]
            if self.racing_puts_lose:
                assert len(won) == 1
        assert keys(storage) == {f"new/{attempt}" for attempt in range(5)}

    def test_readers_never_see_a_part(self, storage: Storage) -> None:
        size = 8 << 20
        unfinished = () if self.hides_parts else (CorruptData,)

        def look(written: Event) -> None:
            while not written.is_set():
                sizes = {info.size for info in storage.list("")}
                try:
                    sizes.add(storage.head("key").size)
                    assert sizes == {size} or not self.hides_parts
                    assert read(storage, "key", size - 1, 1) == b"z"
                except (ObjectNotFound, *unfinished):
                    continue

        with ThreadPoolExecutor(1) as pool:
            for _ in range(3):
                written = Event()
                looking = pool.submit(look, written)
                try:
                    storage.put("key", [b"z" * (1 << 20)] * 8)
                finally:
                    written.set()
                looking.result()
                storage.delete("key")

    def test_concurrent_reads(self, storage: Storage) -> None:
        for number in range(100):
            storage.put(f"{number}", [bytes([number]) * 100, DATA])

        def check(worker: int) -> None:
            for step in range(300):
                number = (worker * 37 + step) % 100
                assert read(storage, f"{number}", 98, 4) == bytes([number]) * 2 + DATA[:2]

        together(check, 8)

    def test_pickle(self, storage: Storage) -> None:
        storage.put("packs/one", [DATA])
        other = pickle.loads(pickle.dumps(storage))
        assert read(other, "packs/one", 98, 4) == read(storage, "packs/one", 98, 4) == DATA[98:102]
        other.put("packs/two", [DATA])
        assert keys(storage) == {"packs/one", "packs/two"}


def read(storage: Storage, key: str, offset: int, length: int) -> bytes:
    """One range."""
    out = bytearray(length)
    storage.get_ranges(key, [RangeRead(offset, memoryview(out))])
    return bytes(out)


def keys(storage: Storage, prefix: str = "") -> set[str]:
    """The keys that a listing shows."""
    return {info.key for info in storage.list(prefix)}


def together(act: Callable[[int], T], count: int) -> list[T]:
    """What `act` gives for 0 … count - 1, all begun at the same moment in threads."""
    barrier = Barrier(count)

    def wait_and_act(number: int) -> T:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_act, range(count)))
