"""A disk that is full: at every size it can have, at every system call, to the last byte."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
import uuid
from contextlib import contextmanager, nullcontext, suppress

import pytest
import torch

import ckptstore
from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.errors import StorageFull
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    assert_exact,
    assert_nothing_leaked,
    assert_whole,
    files,
    site_of,
    state_of,
)

KEPT = {("main", 2), ("main", 3)}
PAGE = 4096
LEAST, STRIDE = 10, 12  # pages
ROOM = 64 << 20
RESERVE = "catalog.sqlite-reserve"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, place, size):
        self.place = place
        self._mount(f"size={size}", "tmpfs")

    def resize(self, size):
        self._mount(f"remount,size={size}")

    def unmount(self):
        subprocess.run(["umount", "-l", self.place], check=True)

    def _mount(self, options, *source):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, *source, self.place], check=True, capture_output=True)


@pytest.fixture
def disks(tmp_path):
    """Gives disks of a size, one after the other at one place."""
    mounted: list[Disk] = []

    def make(size):
        while mounted:
            mounted.pop().unmount()
        mounted.append(Disk(tmp_path, size))
        return mounted[0]

    try:
        make(PAGE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a tmpfs needs root: {error}")
    yield make
    mounted.pop().unmount()


@pytest.fixture
def small_disk(disks):
    """A place on a file system of 2 MiB."""
    return disks(2 << 20).place


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Steps 2 and 3."""
    place = tmp_path_factory.mktemp("full") / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        for _, step in sorted(KEPT):
            store.commit(state_of("main", step), step=step)
    return place


def commit(store):
    store.commit(state_of("main", 4), step=4)


class Life:
    """A store that is made, filled, collected and filled again on a disk which may be too small for any of it."""

    def __init__(self, place):
        self.place, self.failed = place, False
        self.committed: set[tuple[str, int]] = set()
        self.certain: set[tuple[str, int]] = set()

    def go_on(self):
        """All of it, whatever fails on the way."""
        with self._may_be_full(), site_of(self.place).open(chunk_bytes=CHUNK_BYTES) as store:
            for step in (1, 2):
                self._commit(store, step)
            self._collect(store)
            for step in (3, 4):
                self._commit(store, step)

    def _commit(self, store, step):
        with self._may_be_full():
            store.commit(state_of("main", step), step=step)
            self.committed.add(("main", step))
            self.certain.add(("main", step))
        self._check(store)

    def _collect(self, store):
        self.certain = {("main", max((step for _, step in self.committed), default=0))} & self.committed
        with self._may_be_full():
            store.gc(keep=ckptstore.KeepLast(1) if self.committed else None, grace=0)
        self._check(store)

    def _check(self, store):
        for run, step in self.certain:
            assert_exact(store, run, step)

    @contextmanager
    def _may_be_full(self):
        try:
            yield
        except StorageFull:
            self.failed = True


def live_and_see(disk):
    """Whether the disk was too small. With room again, what was reported is there, and nothing else."""
    life = Life(disk.place / "store")
    life.go_on()
    disk.resize(ROOM)
    live = assert_whole(life.place, life.certain)
    assert live <= life.committed
    assert_nothing_leaked(life.place)
    with site_of(life.place).open() as store:
        store.commit(state_of("main", 9), step=9)
    assert assert_whole(life.place) == live | {("main", 9)}
    return life.failed


@pytest.mark.parametrize("first", range(LEAST, LEAST + STRIDE, 4))
def test_a_disk_of_every_size(disks, first):
    enough = next(pages for pages in itertools.count(first, STRIDE) if not live_and_see(disks(pages * PAGE)))
    assert enough > first + STRIDE


@pytest.mark.parametrize("pages", range(1, LEAST))
def test_a_disk_too_small_for_a_catalog(disks, pages):
    assert live_and_see(disks(pages * PAGE))


@pytest.mark.parametrize("call", ["writev", "fsync", "link"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_is_full_at_some_system_call(template, tmp_path, monkeypatch, call, nth):
    place = shutil.copytree(template, tmp_path / "store")
    real, calls = getattr(os, call), itertools.count(1)

    def full(*args):
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    with site_of(place).open() as store:
        before = files(place)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StorageFull, match=f"cannot write {place}/.*No space left"):
                commit(store)
        assert not [name for name in files(place) - before if ".writing-" in name]
        commit(store)
    assert assert_whole(place) == KEPT | {("main", 4)}
    assert_nothing_leaked(place)


def test_a_full_disk(small_disk):
    place = small_disk / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit({"large": torch.rand(150_000)}, step=0)
        store.commit(state_of("main", 1), step=1)
        (small_disk / "foreign").write_bytes(bytes(free(small_disk) - 300_000))
        with pytest.raises(StorageFull, match=r"cannot write .*/packs/.*No space left"):
            store.commit({"large": torch.rand(150_000)}, step=2)
        assert_exact(store, "main", 1)
        store.gc(keep=ckptstore.KeepLast(1), grace=0)
        store.commit(state_of("main", 2), step=2)
    assert assert_whole(place) == {("main", 1), ("main", 2)}
    assert_nothing_leaked(place)


def fill(disk):
    with (disk / uuid.uuid4().hex).open("wb", buffering=0) as foreign, pytest.raises(OSError, match="No space"):
        while foreign.write(bytes(512)) == 512:
            pass


def test_a_disk_without_a_byte_left_can_be_read(small_disk):
    place = small_disk / "store"
    done = set()
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store, pytest.raises(StorageFull):
        for step in itertools.count(1):
            store.commit(state_of("main", step), step=step)
            done.add(("main", step))
    fill(small_disk)
    assert assert_whole(place) == done
    with site_of(place).open() as store:
        store.steps()
        fill(small_disk)
        with pytest.raises(StorageFull, match="make room"):
            store.commit(state_of("main", 1000), step=1000)
        with suppress(StorageFull):  # the database's log may have room left in it
            store.delete(1)
            done.remove(("main", 1))
    assert assert_whole(place) == done


@pytest.mark.parametrize("reserve", [True, False])
def test_a_store_on_a_full_disk_opens_for_reading(small_disk, reserve):
    place = small_disk / "store"
    with site_of(place).open() as store:
        store.commit(state_of("main", 1), step=1)
    if not reserve:
        (place / RESERVE).unlink()
    fill(small_disk)
    with nullcontext() if reserve else pytest.raises(StorageFull, match="make room"):
        ckptstore.open(place).close()
    with ckptstore.open(place, read_only=True) as store:
        assert_exact(store, "main", 1)
        assert store.verify().ok


def test_a_rebuild_in_vain_keeps_nobody_from_reading(small_disk):
    place = small_disk / "store"
    with site_of(place).open() as store:
        for step in range(3):
            store.commit(state_of("main", step), step=step)
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    fill(small_disk)
    with pytest.raises(StorageFull, match="make room"):
        ckptstore.rebuild_catalog(place)
    with ckptstore.open(place, read_only=True) as store:
        assert_exact(store, "main", 1)


def test_a_temporary_folder_without_room_for_a_catalog(template, disks, tmp_path_factory, monkeypatch):
    place = shutil.copytree(template, tmp_path_factory.mktemp("lost") / "store", ignore=shutil.ignore_patterns("cat*"))
    disk = disks(LEAST * PAGE)
    monkeypatch.setattr("tempfile.tempdir", str(disk.place))
    with pytest.raises(StorageFull, match=rf"{disk.place}/ckptstore-.* is full.*: set TMPDIR to a folder with room"):
        ckptstore.open(place, read_only=True)
    assert not list(disk.place.iterdir())


def test_a_disk_that_others_filled_is_freed(small_disk):
    place = small_disk / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit({"large": torch.rand(100_000)}, step=0)
        for step in range(1, 5):
            store.commit(state_of("main", step), step=step)
        kept = (place / RESERVE).stat().st_size
    fill(small_disk)
    with site_of(place).open() as store:
        with pytest.raises(StorageFull, match="make room"):
            store.commit(state_of("main", 5), step=5)
        store.delete(1)
        report = store.gc(keep=ckptstore.KeepLast(1), grace=0)
        assert report.deleted == (0, 2, 3) and report.freed_bytes > 300_000
        store.commit(state_of("main", 5), step=5)
    for foreign in set(small_disk.iterdir()) - {place}:
        foreign.unlink()
    with site_of(place).open():
        assert (place / RESERVE).stat().st_size >= kept
    assert assert_whole(place) == {("main", 4), ("main", 5)}
    assert_nothing_leaked(place)


def test_the_command_frees_a_disk_that_others_filled(small_disk):
    place = small_disk / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        for step in range(1, 5):
            store.commit(state_of("main", step), step=step)
    fill(small_disk)
    assert free(small_disk) == 0
    command = [sys.executable, "-m", "ckptstore", "gc", place, "--keep-last", "1", "--grace", "0", "--yes"]
    output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert "deleted 3 commits, freed" in output
    assert free(small_disk) > 0
    assert assert_whole(place) == {("main", 4)}


def test_a_full_disk_lets_many_steps_be_deleted_one_by_one(disks):
    """Which takes more of SQLite's log than there is room for, unless it is begun again."""
    disk = disks(16 << 20).place
    with site_of(disk / "store").open() as store:
        for step in range(60):
            store.commit({"step": step}, step=step)
    fill(disk)
    with site_of(disk / "store").open() as store:
        for step in range(59):
            store.delete(step)
        assert store.gc(grace=0).purged == 59
        (foreign,) = set(disk.iterdir()) - {disk / "store"}
        foreign.unlink()
        left = (disk / "store" / RESERVE).stat().st_size
        store.delete(59)
        store.gc(grace=0)
        assert (disk / "store" / RESERVE).stat().st_size > left


def filling_first(disk, act):
    def acting(*given, **named):
        fill(disk)
        return act(*given, **named)

    return acting


@pytest.mark.parametrize("act", ["untag", "delete", "gc"])
def test_what_frees_needs_no_room_that_others_left(small_disk, act, monkeypatch):
    place = small_disk / "store"
    with site_of(place).open() as store:
        for step in range(3):
            store.commit(state_of("main", step), step=step)
        store.tag("first", 0)
        store.delete(1)
    fill(small_disk)
    with site_of(place).open() as store:
        store._parts.catalog.open_session(-1)  # for gc to fence
        for name in ("untag", "delete", "fence_expired", "condemn", "settle"):
            monkeypatch.setattr(SqlCatalog, name, filling_first(small_disk, getattr(SqlCatalog, name)))
        acts = {
            "untag": lambda: store.untag("first"),
            "delete": lambda: store.delete(2),
            "gc": lambda: store.gc(grace=0),
        }
        acts[act]()
    assert assert_whole(place) == {("main", 0)} | ({("main", 2)} if act != "delete" else set())


@pytest.mark.parametrize("training", [True, False])
def test_a_catalog_of_many_leaves_can_be_freed(disks, training):
    """Its transactions change most of it, and it grew while it was open."""
    disk = disks(64 << 20).place
    store = site_of(disk / "store").open()
    for step in range(30):
        torch.manual_seed(step)
        store.commit({f"leaf {number}": torch.rand(64) for number in range(300)}, step=step)
    if not training:
        store.close()
    fill(disk)
    command = [sys.executable, "-m", "ckptstore", "gc", disk / "store", "--keep-last", "1", "--grace", "0"]
    done = subprocess.run(
        [*command, "--most", "1", "--yes"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "deleted 29 commits, freed 29 packs" in done.stdout
    store.close()


def test_a_gc_without_room_to_rewrite_packs_frees_the_others(disks):
    disk = disks(16 << 20).place
    tensors = [torch.rand(50_000) for _ in range(20)]
    with site_of(disk / "store").open() as store:
        store.commit({str(number): tensor for number, tensor in enumerate(tensors)}, step=0)
        store.commit({"0": tensors[0]}, step=1)
        store.commit({"other": torch.rand(500)}, step=2)
        store.delete(0)
        store.gc(grace=0)
        store.delete(2)
        fill(disk)
        report = store.gc(grace=0)
        assert (report.packs, report.rewritten) == (1, 0)
        (foreign,) = set(disk.iterdir()) - {disk / "store"}
        foreign.unlink()
        assert store.gc(grace=0).rewritten == 1
        assert store.verify().ok


def test_what_a_commit_asks_for_is_not_taken_from_the_reserve(small_disk):
    place = small_disk / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state_of("main", 1), step=1)
        fill(small_disk)
        kept = (place / RESERVE).stat().st_size
        for _ in range(20):
            with pytest.raises(StorageFull):
                store.commit(state_of("main", 2), step=2)
        assert (place / RESERVE).stat().st_size == kept


def test_a_small_disk_is_left_to_others(disks):
    disk = disks(64 * PAGE)
    with suppress(StorageFull):
        site_of(disk.place / "store").open().close()
    assert not (disk.place / "store" / RESERVE).exists()


def free(place):
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def test_a_limit_on_file_size_counts_as_full(template, tmp_path):
    place = shutil.copytree(template, tmp_path / "store")
    script = """
import resource, sys, torch, ckptstore
store = ckptstore.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    store.commit({"large": torch.rand(1 << 20)}, step=4)
except ckptstore.StorageFull as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, place], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert f"cannot write {place}/packs/" in done.stdout
    assert assert_whole(place) == KEPT
    assert_nothing_leaked(place)


def test_a_limit_that_the_catalog_meets_says_so(template, tmp_path):
    """SQLite tells neither it nor a quota from a disk that fails."""
    place = shutil.copytree(template, tmp_path / "store")
    script = """
import resource, signal, sys, ckptstore
store = ckptstore.open(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    store.tag("best", 3)
except ckptstore.CatalogError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, place], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "a quota or the limit of a file's size (ulimit -f) was met" in done.stdout
    assert assert_whole(place) == KEPT
