from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptstore
from ckptstore.errors import ObjectExists, StorageError, StorageFull, StorageReadOnly
from ckptstore.storage import RangeRead
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import Intercepted, ReadOnly, Retrying
from ckptstore.testing.storage import keys, read


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path / "store", create=True)


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the operating system, in order; a flush of a folder says which one."""
    seen = []

    def watch(name, describe):
        original = getattr(os, name)

        def called(*args, **kwargs):
            seen.append(describe(*args))
            return original(*args, **kwargs)

        monkeypatch.setattr(os, name, called)

    watch("writev", lambda *_: "write")
    watch("fsync", _flushed)
    watch("link", lambda *_: "link")
    watch("unlink", lambda *_: "unlink")
    watch("rename", lambda *_: "rename")
    return seen


def _flushed(descriptor):
    kind = os.fstat(descriptor).st_mode
    return f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}" if stat.S_ISDIR(kind) else "flush"


def files(storage):
    return [path for path in storage.root.rglob("*") if path.is_file()]


def test_bytes_are_flushed_before_the_name_appears(storage, calls):
    storage.put("packs/ab/1", [b"x"])
    assert calls == ["flush packs", "flush store", "write", "flush", "link", "unlink", "flush ab"]


def test_bytes_are_flushed_before_the_rename(storage, no_hard_links, calls):
    storage.put("key", [b"x"])
    assert calls == ["write", "flush", "link", "rename", "flush store"]


def test_folders_are_flushed_once(storage, calls):
    storage.put("packs/ab/1", [b"x"])
    calls.clear()
    storage.put("packs/ab/2", [b"x"])
    assert calls == ["write", "flush", "link", "unlink", "flush ab"]
    calls.clear()
    storage.put("packs/cd/1", [b"x"])
    assert calls == ["flush packs", "write", "flush", "link", "unlink", "flush cd"]


def test_folder_made_by_another_writer_is_flushed_too(storage, calls):
    (storage.root / "packs").mkdir()
    storage.put("packs/1", [b"x"])
    assert calls[0] == "flush store"


def test_root_and_its_parents_are_made_durably(tmp_path, calls):
    LocalStorage(tmp_path / "a" / "b", create=True)
    assert calls == [f"flush {tmp_path.name}", "flush a"]
    calls.clear()
    LocalStorage(tmp_path / "a" / "b", create=True)
    assert calls == []


def test_folder_that_cannot_be_flushed_is_no_error(storage, monkeypatch):
    original = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "folders cannot be flushed here")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    storage.put("key", [b"x"])
    assert storage.get("key") == b"x"


@pytest.mark.parametrize("call", ["writev", "fsync", "link"])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageReadOnly),
        (errno.EIO, StorageError),
    ],
)
def test_failure_leaves_nothing(storage, monkeypatch, call, number, kind):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    storage.put("packs/old", [b"old"])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(kind, match="packs/new") as caught:
            storage.put("packs/new", [b"x" * 1000])
    assert type(caught.value) is kind
    assert os.strerror(number) in str(caught.value)
    assert [path.name for path in files(storage)] == ["old"]
    storage.put("packs/new", [b"new"])
    assert storage.get("packs/new") == b"new"


def test_interrupt_leaves_nothing(storage, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        storage.put("key", [b"x"])
    assert files(storage) == []


def test_loser_of_a_race_leaves_nothing(storage, monkeypatch):
    """The key is taken after the first look at it."""
    storage.put("key", [b"first"])
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    with pytest.raises(ObjectExists):
        storage.put("key", [b"second"])
    assert storage.get("key") == b"first"
    assert len(files(storage)) == 1


def test_short_writes_are_completed(storage, monkeypatch):
    original = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: original(fd, [memoryview(b"".join(views))[:7]]))
    parts = [b"abc", b"defghijkl", b"m", b"n" * 30]
    storage.put("key", parts)
    assert storage.get("key") == b"".join(parts)


BLOCK = 4 << 20


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4097])
def test_whatever_the_size_is(storage, size):
    data = os.urandom(size)
    storage.put("large", [b"\xff" * BLOCK])
    storage.put("key", [data[: size // 3], data[size // 3 :]])
    assert storage.get("key") == data
    assert storage.head("key").size == size


def at_sector(size, shift=0):
    """Bytes that begin at a sector of 512, or so far behind one."""
    memory = memoryview(mmap.mmap(-1, size + shift))[shift:]
    memory[:] = random.Random(size).randbytes(size)
    return memory


@pytest.fixture
def writes(monkeypatch):
    """How many bytes each system call wrote from somewhere else than the block of its thread, beside that."""
    original, seen = os.writev, []

    def write(descriptor, views):
        done = original(descriptor, views)
        seen.append(max(done - len(views[0]), 0))
        return done

    monkeypatch.setattr(os, "writev", write)
    return seen


@pytest.mark.parametrize("before", [0, 512, 4096, BLOCK - 512])
@pytest.mark.parametrize("size", [BLOCK // 4, BLOCK, BLOCK + 512, 2 * BLOCK + 77])
def test_what_lies_at_sectors_is_written_as_it_lies(storage, writes, before, size):
    parts = [os.urandom(before), at_sector(size), os.urandom(100), at_sector(size), at_sector(size)]
    storage.put("key", parts)
    assert storage.get("key") == b"".join(parts)
    assert size - 4096 < sum(writes) <= size, "the first one; the others lie behind a hundred bytes"


@pytest.mark.parametrize("before", [64, 512 + 64, BLOCK - 448])
@pytest.mark.parametrize("size", [BLOCK // 4, BLOCK, 2 * BLOCK + 77])
def test_what_goes_as_far_behind_a_sector_as_it_lies_is_written_as_it_lies(storage, writes, before, size):
    parts = [os.urandom(before), at_sector(size, shift=64), os.urandom(100), at_sector(size, shift=64)]
    storage.put("key", parts)
    same = storage.get("key") == b"".join(parts)
    assert same, "a diff of these would take minutes"
    assert size - 512 - 4096 < sum(writes) <= size, "the first one; the other lies behind a hundred bytes"


SIZES = st.sampled_from([0, 1, 63, 448, 512, 4096, 1 << 20, (1 << 20) + 77, BLOCK - 448, BLOCK, BLOCK + 4096])
PARTS = st.lists(st.tuples(SIZES, st.integers(0, 16).map(lambda n: n * 64) | st.integers(0, 600)), max_size=6)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PARTS)
def test_parts_may_lie_anywhere(storage, parts):
    data = [at_sector(size, shift) for size, shift in parts if size]
    storage.put("key", data)
    same = storage.get("key") == b"".join(data)
    storage.delete("key")
    assert same, "a diff of these would take minutes"


@pytest.mark.parametrize("part", [at_sector(BLOCK, shift=64), at_sector(BLOCK).toreadonly(), at_sector(1000)])
def test_what_lies_elsewhere_is_copied(storage, writes, part):
    storage.put("key", [part, b"more"])
    assert storage.get("key") == bytes(part) + b"more"
    assert not any(writes)


def test_a_disk_of_larger_sectors_gets_pages_of_the_block(storage, monkeypatch):
    original = os.writev

    def write(descriptor, views):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT and any(len(view) % 4096 for view in views):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        direct.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return original(descriptor, views)

    direct: list[bool] = []
    monkeypatch.setattr(os, "writev", write)
    parts = [os.urandom(512), at_sector(BLOCK), at_sector(BLOCK)]
    storage.put("key", parts)
    assert storage.get("key") == b"".join(parts)
    assert all(direct)


@pytest.mark.parametrize("at_once", [0, BLOCK // 8])
def test_memory_that_disks_cannot_read_from_is_copied(storage, monkeypatch, at_once):
    """As of some devices; the refusal comes at once, or after a short write."""
    original = os.writev
    unreadable, refused = at_sector(BLOCK), []

    def write(descriptor, views):
        direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        if direct and any(len(view) > BLOCK // 2 and view.obj is unreadable.obj for view in views):
            refused.append(len(views))
            if len(views) == 1 or not at_once or len(views[0]) < at_once:
                raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
            return original(descriptor, [views[0][:at_once]])
        return original(descriptor, views)

    monkeypatch.setattr(os, "writev", write)
    parts = [os.urandom(at_once), unreadable, os.urandom(100)]
    storage.put("key", parts)
    assert storage.get("key") == b"".join(parts)
    assert refused


def test_short_writes_of_what_lies_at_sectors_are_completed(storage, monkeypatch):
    original = os.writev
    most, short = BLOCK // 8, []

    def write(descriptor, views):
        if len(views) > 1 and sum(map(len, views)) > most:
            views = [views[0][:most], views[1][: most - min(len(views[0]), most)]]
            short.append(most)
        return original(descriptor, views)

    monkeypatch.setattr(os, "writev", write)
    parts = [os.urandom(1024), at_sector(BLOCK // 2), b"end"]
    storage.put("key", parts)
    same = storage.get("key") == b"".join(parts)
    assert same, "a diff of these would take minutes"
    assert len(short) > 2


@pytest.mark.parametrize("refused", ["flag", "write"])
def test_file_systems_that_need_the_page_cache(storage, monkeypatch, refused):
    control, write, tries = fcntl.fcntl, os.writev, []

    def refusing_control(descriptor, command, *flags):
        if refused == "flag" and command == fcntl.F_SETFL and flags[0] & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return control(descriptor, command, *flags)

    def refusing_write(descriptor, views):
        tries.append(bool(control(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        if tries[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(descriptor, views)

    monkeypatch.setattr(fcntl, "fcntl", refusing_control)
    monkeypatch.setattr(os, "writev", refusing_write)
    data = os.urandom(BLOCK + 10)
    storage.put("key", [data])
    assert storage.get("key") == data
    assert not any(tries[1:])


def test_a_write_that_is_refused_for_good_is_reported(storage, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(StorageError, match="Invalid argument"):
        storage.put("key", [b"x"])
    assert files(storage) == []


def test_short_reads_are_completed(storage, monkeypatch):
    original = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: original(fd, [views[0][:7]], offset))
    data = bytes(range(100))
    storage.put("key", [data])
    assert read(storage, "key", 5, 90) == data[5:95]


def test_few_files_stay_open(storage):
    for number in range(100):
        storage.put(f"{number}", [b"x"])
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        read(storage, f"{number}", 0, 1)
    assert 60 <= len(os.listdir("/proc/self/fd")) - before <= 64


AROUND = [lambda storage: storage, Intercepted, lambda storage: ReadOnly(storage, "no"), Retrying]


def test_each_thread_has_a_descriptor_which_deleting_closes(storage):
    """The kernel reads ahead where one goes on, and takes turns for a leap."""
    before = len(os.listdir("/proc/self/fd"))
    storage.put("key", [b"xy"])
    storage.put("other", [b"z"])
    with ThreadPoolExecutor(1) as pool:
        for reading in (pool.submit(read, storage, "key", 0, 2).result(), read(storage, "key", 0, 2)):
            assert reading == b"xy"
        assert pool.submit(read, storage, "key", 1, 1).result() == read(storage, "key", 1, 1) == b"y"
    assert read(storage, "other", 0, 1) == b"z"
    assert len(os.listdir("/proc/self/fd")) == before + 3
    storage.delete("key")
    assert len(os.listdir("/proc/self/fd")) == before + 1


@pytest.mark.parametrize("around", AROUND)
def test_what_is_closed_keeps_no_file_open(storage, around):
    before = len(os.listdir("/proc/self/fd"))
    storage.put("key", [b"x"])
    wrapped = around(storage)
    for _ in range(2):
        assert read(wrapped, "key", 0, 1) == b"x"
        assert len(os.listdir("/proc/self/fd")) == before + 1
        wrapped.close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_store_keeps_no_file_open(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"w": torch.ones(5000)}, step=0)
        store.checkout(0)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert store.checkout(0)["w"].sum() == 5000
    store.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_deleted_files_are_closed(storage):
    before = len(os.listdir("/proc/self/fd"))
    storage.put("key", [b"x"])
    read(storage, "key", 0, 1)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    storage.delete("key")
    assert len(os.listdir("/proc/self/fd")) == before


def test_chunks_of_one_object_open_it_once(storage, monkeypatch):
    storage.put("key", [b"0123456789"])
    opened = []
    original = os.open

    def count(path, *rest):
        opened.append(path)
        return original(path, *rest)

    monkeypatch.setattr(os, "open", count)
    reads = [RangeRead(offset, memoryview(bytearray(1))) for offset in range(10)]
    storage.get_ranges("key", reads)
    storage.get_ranges("key", reads)
    assert len(opened) == 1


def test_sweep_removes_only_what_is_old_and_unfinished(storage):
    storage.put("packs/ab/1", [b"x"])
    for name, age in (("old", 1000), ("young", 10)):
        leftover = storage.root / "packs" / "ab" / f".writing-{name}"
        leftover.write_bytes(b"part")
        then = leftover.stat().st_mtime - age
        os.utime(leftover, (then, then))
        os.utime(storage.root / "packs/ab/1", (then, then))
    assert keys(storage) == {"packs/ab/1"}
    assert storage.sweep_temporary("packs/", 100) == 1
    assert sorted(path.name for path in files(storage)) == [".writing-young", "1"]


@pytest.mark.parametrize("target", [".", "loop", ".."])
def test_links_to_folders_are_not_followed_round_and_round(storage, target):
    storage.put("packs/ab/1", [b"x"])
    (storage.root / "packs" / "loop").symlink_to(target)
    assert keys(storage, "packs/") == {"packs/ab/1"}
    assert storage.sweep_temporary("packs/", 0) == 0


def test_a_file_that_is_a_link_is_listed(storage, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"x")
    storage.put("packs/ab/1", [b"x"])
    (storage.root / "packs/ab/2").symlink_to(tmp_path / "elsewhere")
    assert keys(storage) == {"packs/ab/1", "packs/ab/2"}


def test_missing_root(tmp_path):
    storage = LocalStorage(tmp_path / "none")
    assert keys(storage) == set()
    storage.delete("key")
    with pytest.raises(StorageError, match="none is not a folder"):
        storage.put("packs/1", [b"x"])
    with pytest.raises(StorageError, match="No such file"):
        storage.put("key", [b"x"])
    assert os.listdir(tmp_path) == []


def test_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(StorageError, match="file"):
        LocalStorage(tmp_path / "file", create=True)
    with pytest.raises(StorageError, match="not a folder"):
        LocalStorage(tmp_path / "file").put("packs/1", [b"x"])
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_object_below_an_object(storage):
    storage.put("key", [b"x"])
    with pytest.raises(StorageError, match="key/below"):
        storage.put("key/below", [b"y"])
    assert len(files(storage)) == 1


def test_root_does_not_follow_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage(Path("store"), create=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.put("key", [b"x"])
    assert (tmp_path / "store" / "key").read_bytes() == b"x"
    assert storage.url == str(tmp_path / "store")
    assert storage.url in repr(storage)


def test_nothing_is_changed_in_the_folder_of_another_store(tmp_path):
    """The store was moved away while it was open, and another one, or another folder, is at its place."""
    place, moved = tmp_path / "store", tmp_path / "moved"
    catalog = f"sqlite:///{tmp_path}/catalog.sqlite"
    with ckptstore.open(place, catalog=catalog) as store:
        store.commit({"w": torch.randn(3000)}, step=1)
        place.rename(moved)
        with ckptstore.open(place) as other:
            other.commit({"w": torch.randn(3000)}, step=1)
        before = sorted(place.rglob("*.*"))
        with pytest.raises(StorageError, match=f"{place} is not the folder .* open the store where it was moved"):
            store.commit({"w": torch.randn(3000)}, step=2)
        assert sorted(place.rglob("*.*")) == before
    with ckptstore.open(moved, catalog=catalog) as store:
        assert store.steps() == [1]
        assert store.verify().ok


def test_a_folder_may_be_numbered_anew(tmp_path):
    """As some file systems do, or when it is restored at its place."""
    place = tmp_path / "store"
    with ckptstore.open(place) as store:
        store.commit({"w": torch.randn(3000)}, step=1)
    storage = LocalStorage(place)
    storage.get("ckptstore.json")
    place.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", place)
    storage.put("key", [b"x"])
    storage.delete("key")
    shutil.rmtree(place)
    place.mkdir()
    for change in (lambda: storage.put("key", [b"x"]), lambda: storage.delete("key")):
        with pytest.raises(StorageError, match="is not the folder any more"):
            change()


def test_second_handle_sees_the_same(storage):
    storage.put("key", [b"x"])
    other = LocalStorage(storage.root)
    assert other.get("key") == b"x"
    other.delete("key")
    assert keys(storage) == set()
