"""Through the page cache or past it, by a clock that the test moves, and on a real disk."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptstore.format.buffers import Buffer
from ckptstore.storage import local
from ckptstore.storage.durable import write_file
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.page_cache import PageCache, page_cache_of

MIB = 1 << 20
PACK = 64 * MIB


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Disk:
    """Takes so many bytes a second past the page cache, and through it."""

    def __init__(self, past, through):
        self.rates, self.clock = {False: past, True: through}, Clock()
        self.cache = PageCache(self.clock)

    def write(self, size=PACK):
        with self.cache.writing(size) as cached:
            self.clock.now += size / self.rates[cached]
        return cached


@pytest.mark.parametrize(
    ("past", "through", "ways"),
    [
        (1e9, 2e9, [False] * 9),
        (4.1e8, 2e9, [False] * 9),
        (3.9e8, 4.9e8, [False] * 2 + [True] * 7),
        (1e8, 1e8, [False] * 2 + [True] * 7),
        (3e8, 6e8, [False] * 2 + [True] * 7),  # which is what it gives
        (2e8, 5.1e8, [False, False, True, True, False, False, True, True, False]),
    ],
)
def test_what_is_slow_is_written_through_it(past, through, ways):
    disk = Disk(past, through)
    assert [disk.write() for _ in ways] == ways


def test_a_disk_that_becomes_fast_again_is_written_past_it():
    disk = Disk(3e8, 4e8)
    assert [disk.write() for _ in range(9)][2:] == [True] * 7
    disk.rates = {False: 2e9, True: 7e8}
    assert [disk.write() for _ in range(20)][-10:] == [False] * 10


def test_small_files_show_nothing():
    disk = Disk(1e6, 1e6)
    assert not any(disk.write(8 * MIB) for _ in range(100))


def test_what_is_written_at_once_counts_once_in_time():
    disk = Disk(1.0, 1.0)
    for _ in range(4):  # each alone would take 0.16 s, which is slow
        with disk.cache.writing(PACK), disk.cache.writing(PACK):
            disk.clock.now += 2 * PACK / 8e8
    with disk.cache.writing(PACK) as cached:
        assert not cached


def test_time_counts_from_who_began_first():
    disk = Disk(1.0, 1.0)
    for _ in range(4):
        with disk.cache.writing(PACK):
            disk.clock.now += PACK / 2e8
            with disk.cache.writing(PACK):
                disk.clock.now += PACK / 1e9
    with disk.cache.writing(PACK) as cached:
        assert cached


def test_what_fails_is_over():
    disk = Disk(1e9, 1e9)
    with pytest.raises(OSError, match="full"), disk.cache.writing(PACK):
        disk.clock.now += PACK / 1e9
        raise OSError("full")
    disk.clock.now += 1000
    assert not any(disk.write() for _ in range(4))


def test_all_stores_on_a_disk_show_how_fast_it_is(tmp_path):
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
    assert page_cache_of(tmp_path / "one") is page_cache_of(tmp_path / "another")
    assert page_cache_of(Path("/proc")) is not page_cache_of(tmp_path / "one")


def test_a_process_that_is_forked_off_begins_anew(tmp_path):
    cache = page_cache_of(tmp_path)
    with cache.writing(PACK), ThreadPoolExecutor(1) as pool:
        pid = os.fork()
        if not pid:
            os._exit(page_cache_of(tmp_path) is cache)
        assert pool.submit(os.waitpid, pid, 0).result(60)[1] == 0


@pytest.mark.parametrize("slow", [False, True])
def test_files_are_whole_either_way(tmp_path, monkeypatch, slow):
    ways = []

    def write(path, parts, *, cached):
        ways.append(cached)
        write_file(path, parts, cached=cached)

    monkeypatch.setattr(local, "write_file", write)
    storage = LocalStorage(tmp_path / "store", create=True)
    monkeypatch.setattr(local, "page_cache_of", {storage.root: PageCache(Slowly() if slow else Clock())}.get)
    parts: list[Buffer] = [os.urandom(16 * MIB + 100), os.urandom(1000), bytearray(os.urandom(MIB))]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: storage.put(f"key{number}", parts), range(12)))
    assert all(storage.get(f"key{number}") == b"".join(parts) for number in range(12))
    assert ways[0] is False
    assert ways[-1] is slow


class Slowly(Clock):
    """A second goes by at each look."""

    def __call__(self):
        self.now += 1
        return self.now


def test_a_cached_file_is_written_with_no_flag(tmp_path, monkeypatch):
    flags = []
    original = os.writev

    def write(descriptor, views):
        flags.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return original(descriptor, views)

    monkeypatch.setattr(os, "writev", write)
    for cached in (False, True):
        write_file(tmp_path / str(cached), [os.urandom(5 * MIB)], cached=cached)
    assert flags == [True, True, False, False]
