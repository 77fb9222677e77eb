"""Every operation on storage and every call of the catalog fails once, before or after it took effect."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from functools import partial

import pytest
import torch

import ckptstore
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CatalogError, CkptStoreError, StorageFull
from ckptstore.opening import open_parts
from ckptstore.store import Store
from ckptstore.testing.audit import CHUNK_BYTES, assert_exact, assert_nothing_leaked, assert_whole, files, state_of
from ckptstore.testing.catalog_faults import failing_catalog
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth

KEPT = {("main", 2), ("main", 3)}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Steps 2 and 3 live, 0 deleted, 1 purged."""
    place = tmp_path_factory.mktemp("faults") / "store"
    with ckptstore.open(place, chunk_bytes=CHUNK_BYTES) as store:
        for step in range(4):
            store.commit(state_of("main", step), step=step)
        store.delete(1)
        store.gc(grace=0)
        store.delete(0)
        store.tag("good", 3)
    return place


def commit(store):
    store.commit(state_of("main", 4), step=4)


def commit_the_same_again(store):
    store.commit(state_of("main", 3), step=3)


def commit_in_background(store):
    store.commit_async(state_of("main", 4), step=4).result()


def checkout(store):
    assert_same(store.checkout(3), state_of("main", 3))


def checkout_into(store):
    live = state_of("main", 2)
    assert_same(store.checkout(3, into=live), state_of("main", 3))


def read(store):
    part = store.read(2, "model/frozen", index=slice(1000, 1100))
    assert_same(part, state_of("main", 2)["model"]["frozen"][1000:1100].clone())


def collect(store):
    store.gc(grace=0)


def keep_last(store):
    store.gc(keep=ckptstore.KeepLast(0), grace=0)


def verify(store):
    report = store.verify()
    if not report.ok:
        raise CkptStoreError(report.problems)


def restore_and_tag(store):
    if 0 not in store.steps():
        store.restore(0)
    store.tag("good", 0)


OPERATIONS = {
    act.__name__: act
    for act in (
        commit,
        commit_the_same_again,
        commit_in_background,
        checkout,
        checkout_into,
        read,
        collect,
        keep_last,
        verify,
        restore_and_tag,
    )
}
ADDED = {"commit": {("main", 4)}, "commit_in_background": {("main", 4)}, "restore_and_tag": {("main", 0)}}


def fail_storage(parts, n, after):
    storage = FailNth(parts.storage, n, after=after)
    return ChunkStore(storage, parts.catalog, parts.config), storage


def fail_catalog(parts, n, after):
    catalog, counter = failing_catalog(parts.catalog, n, after=after)
    return ChunkStore(parts.storage, catalog, parts.config), counter


def parts_of(place):
    return open_parts(
        place, catalog=None, create=False, read_only=False, digest="xxh3_128", chunk_bytes=4096, storage_options=None
    )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fail", [fail_storage, fail_catalog])
@pytest.mark.parametrize("name", OPERATIONS)
def test_fail_the_nth(template, tmp_path, name, fail, after):
    act = OPERATIONS[name]
    for n in itertools.count(1):
        place = tmp_path / str(n)
        shutil.copytree(template, place)
        failed = try_once(place, act, partial(fail, n=n, after=after))
        assert KEPT - gone(name) <= assert_whole(place)
        with ckptstore.open(place) as store:
            act(store)
        expected = KEPT - gone(name) | ADDED.get(name, set())
        assert assert_whole(place) == expected
        assert_nothing_leaked(place)
        assert assert_whole(place) == expected
        shutil.rmtree(place)
        if not failed:
            break
    assert n > 1 or (fail is fail_storage and name in {"commit_the_same_again", "restore_and_tag"})


def gone(name):
    return {("main", 2)} if name == "keep_last" else set()


def try_once(place, act, fail):
    """Whether the failure came. An error must be of the tree, and the store must go on after it."""
    parts, counter = fail(parts_of(place))
    with Store(parts, "main") as store:
        try:
            act(store)
        except CkptStoreError:
            assert counter.failed
        failed = counter.failed
        if failed:
            assert_exact(store, "main", 3)
    return failed


@pytest.mark.parametrize("n", [1, 2])
def test_an_interrupt_is_not_lost_when_the_catalog_fails_too(template, tmp_path, monkeypatch, n):
    def end_session(*_):
        raise CatalogError("the database is gone as well")

    place = shutil.copytree(template, tmp_path / "store")
    parts = parts_of(place)
    interrupted = ChunkStore(FailNth(parts.storage, n, KeyboardInterrupt()), parts.catalog, parts.config)
    with Store(interrupted, "main") as store, monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(parts.catalog), "end_session", end_session)
        commit(store)
    assert assert_whole(place) == KEPT
    assert_nothing_leaked(place)


@pytest.mark.parametrize("call", ["writev", "fsync", "link"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_is_full_at_some_system_call(template, tmp_path, monkeypatch, call, nth):
    place = shutil.copytree(template, tmp_path / "store")
    real, calls = getattr(os, call), itertools.count(1)

    def full(*args):
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    with ckptstore.open(place) as store:
        before = files(place)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(StorageFull, match=f"cannot write {place}/.*No space left"):
                commit(store)
        assert not [name for name in files(place) - before if ".writing-" in name]
        commit(store)
    assert assert_whole(place) == KEPT | {("main", 4)}
    assert_nothing_leaked(place)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_full_disk(small_disk):
    place = small_disk / "store"
    with ckptstore.open(place, chunk_bytes=CHUNK_BYTES) as store:
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


def test_a_disk_without_a_byte_left_can_be_read(small_disk):
    place = small_disk / "store"
    done = set()
    with ckptstore.open(place, chunk_bytes=CHUNK_BYTES) as store, pytest.raises(StorageFull):
        for step in itertools.count(1):
            store.commit(state_of("main", step), step=step)
            done.add(("main", step))
    with (small_disk / "foreign").open("wb", buffering=0) as foreign, pytest.raises(OSError, match="No space"):
        while foreign.write(bytes(512)) == 512:
            pass
    assert assert_whole(place) == done
    with ckptstore.open(place) as store:
        for change in (lambda: store.commit(state_of("main", 1000), step=1000), lambda: store.delete(1)):
            with pytest.raises(StorageFull, match="make room"):
                change()
    assert assert_whole(place) == done


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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run(
        [sys.executable, "-c", script, place], env=environment, capture_output=True, text=True, check=True
    )
    assert f"cannot write {place}/packs/" in told.stdout
    assert assert_whole(place) == KEPT
    assert_nothing_leaked(place)
