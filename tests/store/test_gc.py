"""What gc does beyond dropping what no commit needs: it rewrites wasteful packs, and sweeps what nobody knows of."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

import ckptstore
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import CatalogError, GcRefused, InvalidArgument
from ckptstore.format.packs import pack_key
from ckptstore.operations.collecting import checks as gc_checks
from ckptstore.storage.local import LocalStorage
from ckptstore.store import Store
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    assert_nothing_leaked,
    assert_whole,
    expire_sessions,
    files,
    site_of,
    state_of,
)
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth, Meanwhile
from tests.store.blocks import state

BLOCKS = 8


@pytest.fixture
def site(sites):
    """Step 1 needs one block of eight of the pack that step 0 wrote; step 0 is purged."""
    made = sites()
    with made.open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(*range(BLOCKS)), step=0)
        store.commit(state(0, 100), step=1)
        store.delete(0)
        store.gc(grace=0)
    return made


def test_a_wasteful_pack_is_rewritten(site):
    with site.open() as store:
        before = store.stats().stored_bytes
        plan = store.plan_gc(grace=0)
        assert len(plan.rewrite) == 1
        assert store.stats().stored_bytes == before
        report = plan.execute()
        assert (report.rewritten, report.packs) == (1, 1)
        assert 0 < report.written_bytes < before / 2
        assert store.stats().stored_bytes == before - report.freed_bytes + report.written_bytes
        assert_same(store.checkout(1), state(0, 100))
        assert store.verify().ok
        assert store.plan_gc(grace=0).rewrite == ()
    assert_nothing_leaked(site)


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(*range(BLOCKS)), step=0)
        store.commit(state(0, 100), step=1)
        store.delete(0)
        store.gc(grace=0)
    return place


def test_small_chunks_are_not_rewritten_for_ever(tmp_path):
    with site_of(tmp_path / "store").open() as store:
        store.commit({str(number): torch.arange(10) + number for number in range(50)}, step=0)
        store.gc(grace=0)
        plan = store.plan_gc(grace=0)
        assert plan.rewrite == ()
        assert plan.execute().written_bytes == 0


def gc_meanwhile(place, verb, act):
    """A gc during which something happens when it is about to do its first operation of a verb in rewriting."""
    parts = site_of(place).parts()
    with Store(parts, "main") as store:
        plan = store.plan_gc(grace=0)
    assert plan.rewrite
    storage = Meanwhile(parts.storage, verb, act)
    with Store(replace(parts, storage=storage), "main") as store:
        return store.gc(grace=0)


@pytest.mark.parametrize("verb", ["get_ranges", "put"])
def test_a_commit_that_comes_in_between_keeps_the_old_pack(place, verb):
    def commit():
        with site_of(place).open() as other:
            other.commit(state(5, 6), step=2)

    gc_meanwhile(place, verb, commit)
    with site_of(place).open() as store:
        for step, numbers in ((1, (0, 100)), (2, (5, 6))):
            assert_same(store.checkout(step), state(*numbers))
        assert store.verify().ok
        store.delete(1)
        store.gc(grace=0)
        assert_same(store.checkout(2), state(5, 6))
    assert_nothing_leaked(place)


@pytest.mark.parametrize("verb", ["get_ranges", "put"])
def test_a_deletion_that_comes_in_between(place, verb):
    def drop():
        with site_of(place).open() as other:
            other.delete(1)
            other.gc(grace=0)

    gc_meanwhile(place, verb, drop)
    with site_of(place).open() as store:
        assert store.steps() == []
    assert_nothing_leaked(place)
    assert files(place) == {"ckptstore.json"}


@pytest.mark.parametrize("verb", ["get_ranges", "put"])
def test_two_rewrite_at_once(place, verb):
    def rewrite():
        with site_of(place).open() as other:
            other.gc(grace=0)

    gc_meanwhile(place, verb, rewrite)
    with site_of(place).open() as store:
        assert_same(store.checkout(1), state(0, 100))
        assert store.verify().ok
        assert store.stats().packs == {"live": 2}
        assert store.plan_gc(grace=0).rewrite == ()
    assert_nothing_leaked(place)


def test_a_reader_of_the_old_pack_goes_on(place):
    def rewrite():
        with site_of(place).open() as other:
            assert other.gc(grace=0).rewritten == 1

    parts = site_of(place).parts()
    storage = Meanwhile(parts.storage, "get_ranges", rewrite)
    with Store(replace(parts, storage=storage), "main") as store:
        assert_same(store.checkout(1), state(0, 100))
    assert storage.happened


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", range(1, 12))
def test_an_interrupted_rewriting_is_begun_again(place, n, after):
    parts = site_of(place).parts()
    storage = FailNth(parts.storage, n, after=after)
    with Store(replace(parts, storage=storage), "main") as store:
        try:
            store.gc(grace=0)
        except ckptstore.StorageError:
            assert storage.failed
        assert_same(site_of(place).open().checkout(1), state(0, 100))
    with site_of(place).open() as store:
        store.gc(grace=0)
        assert store.plan_gc(grace=0).rewrite == ()
        assert store.stats().stored_bytes < 3 * 81_920
        assert_same(store.checkout(1), state(0, 100))
    assert_nothing_leaked(place)


def test_a_damaged_wasteful_pack_does_not_stop_gc(place):
    with site_of(place).open() as store:
        (name,) = store.plan_gc(grace=0).rewrite
        path = place / pack_key(name)
        path.write_bytes(bytes(path.stat().st_size))
        store.commit(state(200), step=2)
        store.delete(2)
        report = store.gc(grace=0)
        assert (report.packs, report.rewritten) == (1, 0)
        assert not store.verify().ok


# the sweep


def late_writer(place):
    """Puts its pack and its document after gc took it for dead."""
    with closing(site_of(place).parts().catalog) as catalog:
        storage = site_of(place).parts().storage
        session, pack = catalog.open_session(60), uuid.uuid4().hex
        document = f"manifests/main/000000000009.{uuid.uuid4().hex}.manifest"
        catalog.reserve(session, [pack], document)
        expire_sessions(place)
        with site_of(place).open() as store:
            store.gc(grace=0)
        storage.put(pack_key(pack), [b"late"])
        storage.put(document, [b"late"])
    return {pack_key(pack), document}


def test_the_plan_tells_the_bytes_of_what_a_failed_commit_left(place):
    with site_of(place).open() as store, closing(site_of(place).parts().catalog) as catalog:
        store.gc(grace=0)
        session, pack = catalog.open_session(60), uuid.uuid4().hex
        catalog.reserve(session, [pack], None)
        site_of(place).parts().storage.put(pack_key(pack), [b"some bytes"])
        catalog.end_session(session)
        plan = store.plan_gc(grace=0)
        assert (len(plan.condemned.packs), plan.freed_bytes) == (1, 10)
        assert plan.execute().freed_bytes == 10


def test_what_a_late_writer_left_is_swept(place):
    late = late_writer(place)
    with site_of(place).open() as store:
        store.gc(grace=0)
        assert late <= files(place)
        plan = store.plan_gc(grace=0, sweep=True)
        assert {*plan.orphans.documents, *map(pack_key, plan.orphans.packs)} == late
        report = plan.execute()
        assert (report.packs, report.purged, report.freed_bytes) == (1, 1, 4)
        assert not late & files(place)
        assert_same(store.checkout(1), state(0, 100))
    assert_nothing_leaked(place)


def test_what_nobody_knows_of_is_swept_after_a_day(place):
    pack, document = pack_key(uuid.uuid4().hex), f"manifests/main/000000000003.{uuid.uuid4().hex}.manifest"
    for key in (pack, document, "packs/README", "manifests/README"):
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(b"who knows")
    with site_of(place).open() as store:
        for sweep in (False, True):
            with pytest.raises(GcRefused, match=rf"{document} is damaged, .* may be a commit that .* or remove it"):
                store.gc(grace=0, sweep=sweep)
        (place / document).unlink()
        store.gc(grace=0, sweep=True)
        assert pack in files(place)
        for key in (pack, "packs/README", "manifests/README"):
            os.utime(place / key, (0, 0))
        report = store.gc(grace=0, sweep=True)
        assert (report.packs, report.purged) == (1, 0)
        assert pack not in files(place)
        assert (place / "packs/README").exists()
        assert (place / "manifests/README").exists()
        assert_same(store.checkout(1), state(0, 100))


def test_nothing_is_swept_when_the_catalog_is_older_than_the_storage(tmp_path):
    place = tmp_path / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state_of("main", 0), step=0)
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with site_of(place).open() as store:
        store.commit(state_of("main", 1), step=1)
    bring_back(place, tmp_path / "older.sqlite")
    for path in place.rglob("*"):
        os.utime(path, (0, 0))
    before = files(place)
    with site_of(place).open() as store:
        assert store.steps() == [0]
        with pytest.raises(GcRefused, match=r"manifests/main/000000000001.*older than the storage: rebuild"):
            store.gc(grace=0, sweep=True)
        store.gc(grace=0)
    assert files(place) == before
    (place / "catalog.sqlite").unlink()
    assert ckptstore.rebuild_catalog(place).commits == 2
    assert assert_whole(place) == {("main", 0), ("main", 1)}


def test_nothing_is_collected_when_the_catalog_is_older_than_the_storage(place, tmp_path):
    """The first commit after the copy rests on a pack that nothing of the older catalog needs soon."""
    with site_of(place).open() as store:
        store.commit(state(0, 500), step=2)
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with site_of(place).open() as store:
        store.commit(state(0, 1000), step=3)
    bring_back(place, tmp_path / "older.sqlite")
    before = files(place)
    with site_of(place).open() as store:
        for keep in (ckptstore.KeepLast(1), None):
            with pytest.raises(GcRefused, match=r"manifests/main/000000000003.*older than the storage: rebuild"):
                store.gc(keep, grace=0)
        assert files(place) == before
    rebuilt(place)
    assert assert_readable(place, 3, state(0, 1000))


def bring_back(place, older):
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    shutil.copy(older, place / "catalog.sqlite")


def test_nothing_is_collected_by_a_catalog_over_which_the_log_of_another_was_laid(tmp_path):
    """A trainer was killed, and an older copy of the catalog was brought back beside the log that it left."""
    place = tmp_path / "store"
    with site_of(place).open() as store:
        commit_some(store, range(40))
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with site_of(place).open("late") as store:
        commit_some(store, range(20))
    with site_of(place).open("late") as store:
        commit_some(store, range(20, 30))
        shutil.copy(place / "catalog.sqlite-wal", tmp_path / "log")
    bring_back(place, tmp_path / "older.sqlite")
    shutil.copy(tmp_path / "log", place / "catalog.sqlite-wal")
    before = files(place)
    with site_of(place).open() as store:
        with pytest.raises((GcRefused, CatalogError), match="-wal and -shm"):
            store.gc()
        assert not store.verify("catalog").ok
    assert files(place) == before


def commit_some(store, steps):
    for step in steps:
        store.commit({name: torch.randn(200) for name in "abc"}, step=step)


def test_nothing_of_a_commit_is_collected_that_was_under_way_when_the_catalog_was_copied(place, tmp_path, monkeypatch):
    put = LocalStorage.put

    def copied(self, key, parts):
        put(self, key, parts)
        if key.startswith("packs/"):
            with (
                closing(sqlite3.connect(place / "catalog.sqlite")) as source,
                closing(sqlite3.connect(tmp_path / "older.sqlite")) as copy,
            ):
                source.backup(copy)

    with site_of(place).open() as store:
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "put", copied)
            store.commit(state(700), step=2)
        store.commit(state(700) | {"n": 3}, step=3)
    bring_back(place, tmp_path / "older.sqlite")
    expire_sessions(place)
    before = files(place)
    with site_of(place).open() as store, pytest.raises(GcRefused, match="older than the storage: rebuild"):
        store.gc()
    assert files(place) == before
    rebuilt(place)
    assert assert_readable(place, 3, state(700) | {"n": 3})


def test_a_commit_that_is_about_to_exist_does_not_stop_gc(place, monkeypatch):
    put = LocalStorage.put
    purged = []

    def collected(self, key, parts):
        put(self, key, parts)
        if key.startswith("manifests/"):
            with site_of(place).open() as other:
                purged.append(other.gc(ckptstore.KeepLast(1), grace=0).purged)

    with site_of(place).open() as store:
        store.commit(state(1), step=2)
        monkeypatch.setattr(LocalStorage, "put", collected)
        store.commit(state(2), step=3)
    assert purged == [1]
    assert assert_readable(place, 3, state(2))


def test_what_a_rebuild_left_out_does_not_stop_gc(place):
    with site_of(place).open() as store:
        store.delete(1)
        store.commit(state(0, 200), step=1)
        store.commit(state(300), step=2)
        store.commit(state(400), step=3)
        [pack] = site_of(place).parts().catalog.packs(store.find(2).id)
    path = place / pack_key(pack.name)
    path.write_bytes(path.read_bytes()[:1000])
    assert len(rebuilt(place).left_out) == 3  # an older step, and one that is damaged, with its pack
    with site_of(place).open() as store:
        assert store.gc(ckptstore.KeepLast(1), grace=0).deleted == (1,)
        assert_same(store.checkout(3), state(400))


def rebuilt(place):
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    for path in place.rglob("*"):
        os.utime(path, (0, 0))
    return ckptstore.rebuild_catalog(place)


def test_a_deleted_commit_that_a_rebuild_left_out_is_swept(place):
    with site_of(place).open() as store:
        store.delete(1)
        store.commit(state(0, 200), step=1)
    assert len(rebuilt(place).left_out) == 1
    with site_of(place).open() as store:
        assert store.gc(grace=0, sweep=True).purged == 1
        assert_same(store.checkout(1), state(0, 200))
    assert_nothing_leaked(place)


def test_a_damaged_commit_that_a_rebuild_left_out_is_not_swept(place):
    with site_of(place).open() as store:
        store.commit(state(300), step=2)
        [pack] = site_of(place).parts().catalog.packs(store.find(2).id)
    path = place / pack_key(pack.name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    rebuilt(place)
    before = files(place)
    with site_of(place).open() as store, pytest.raises(GcRefused, match=r"000000000002.* is a damaged commit"):
        store.gc(grace=0, sweep=True)
    assert files(place) == before
    path.write_bytes(whole)
    rebuilt(place)
    assert assert_readable(place, 2, state(300))


def test_a_commit_whose_document_is_damaged_is_not_swept(place):
    with site_of(place).open() as store:
        path = place / store.commit(state(300), step=2).document
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    assert len(rebuilt(place).left_out) == 1
    before = files(place)
    with site_of(place).open() as store:
        assert [path.samefile(place / problem.object) for problem in store.verify("sizes").problems] == [True]
        for sweep in (False, True):
            with pytest.raises(GcRefused, match=r"000000000002.* is damaged, .* may be a commit"):
                store.gc(ckptstore.KeepLast(1), grace=0, sweep=sweep)
    assert files(place) == before
    path.write_bytes(whole)
    rebuilt(place)
    assert assert_readable(place, 2, state(300))


@pytest.mark.parametrize("seconds", [-3600, 0, 3600])
def test_a_step_made_anew_is_the_one_that_a_rebuild_finds(place, monkeypatch, seconds):
    """Whatever the clock of who made it anew says; nobody sweeps it."""
    with site_of(place).open() as store:
        store.delete(1)
        with monkeypatch.context() as other:
            other.setattr("time.time", lambda now=time.time: now() + seconds)
            store.commit(state(300), step=1)
    assert len(rebuilt(place).left_out) == 1
    with site_of(place).open() as store:
        assert_same(store.checkout(1), state(300))
        store.gc(grace=0, sweep=True)
    rebuilt(place)
    assert assert_readable(place, 1, state(300))


def test_an_older_catalog_does_not_believe_the_clocks(tmp_path, monkeypatch):
    """The step was made anew by somebody whose clock was late."""
    place = tmp_path / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(0), step=0)
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with site_of(place).open() as store, monkeypatch.context() as late:
        store.delete(0)
        late.setattr("time.time", lambda: 1e9)
        store.commit(state(1), step=0)
    shutil.copy(tmp_path / "older.sqlite", place / "catalog.sqlite")
    with site_of(place).open() as store, pytest.raises(GcRefused, match="older than the storage"):
        store.gc(grace=0, sweep=True)


@pytest.mark.parametrize("target", [".", "loop"])
def test_what_is_not_of_the_store_is_left_alone(tmp_path, target):
    mine = tmp_path / "store" / "mine" / ".writing-a-book"
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(state(1), step=1)
        (tmp_path / "store" / "loop").symlink_to(target)
        mine.parent.mkdir()
        mine.write_bytes(b"chapter 1")
        os.utime(mine, (0, 0))
        assert store.gc().unfinished == 0
    assert mine.read_bytes() == b"chapter 1"


def assert_readable(place, step, expected):
    with site_of(place).open() as store:
        assert_same(store.checkout(step), expected)
        return store.verify().ok


# the tripwire


def test_more_than_a_share_is_not_dropped_unseen(tmp_path):
    with site_of(tmp_path / "store").open() as store:
        for step in range(20):
            store.commit({"step": step}, step=step)
        with pytest.raises(GcRefused, match=r"delete 19 of 20 commits of run 'main', more than the share of 0.9"):
            store.gc(ckptstore.KeepLast(1))
        with pytest.raises(GcRefused):
            store.gc(ckptstore.KeepLast(5), most=0.5)
        wrong: list[Any] = [-0.1, 1.1, "1"]
        for most in wrong:
            with pytest.raises(InvalidArgument, match="most="):
                store.gc(ckptstore.KeepLast(5), most=most)
        assert len(store.steps()) == 20
        assert len(store.gc(ckptstore.KeepLast(2)).deleted) == 18
        store.plan_gc(ckptstore.KeepLast(0)).execute()
        assert store.steps() == []


def test_a_plan_that_was_seen_is_executed(tmp_path):
    with site_of(tmp_path / "store").open() as store:
        for step in range(20):
            store.commit({"step": step}, step=step)
        store.plan_gc(ckptstore.KeepLast(1)).execute()
        assert store.steps() == [19]
        assert store.gc(ckptstore.KeepLast(0)).deleted == (19,)


def test_the_catalog_knows_what_is_needed_of_packs(place):
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        needed = sorted(pack.needed_bytes for pack in catalog.packs())
        sizes = sorted(sum(chunk.length for chunk in catalog.pack_chunks(pack.name)) for pack in catalog.packs())
    assert needed[0] < sizes[-1] / 4
    assert needed[1] == sizes[0]


def test_what_was_written_here_for_another_store_is_not_swept(tmp_path):
    place, other = tmp_path / "store", tmp_path / "other"
    for each in (place, other):
        with site_of(each).open() as store:
            store.commit(state(int(each is place)), step=1)
    shutil.copytree(other / "packs", place / "packs", dirs_exist_ok=True)
    shutil.copytree(other / "manifests", place / "manifests", dirs_exist_ok=True)
    for path in place.rglob("*"):
        os.utime(path, (0, 0))
    before = files(place)
    with site_of(place).open() as store:
        store.gc(sweep=True)
    assert files(place) == before


class Watched:
    """Stands for a catalog, and records what was looked at."""

    url = "sqlite:///catalog"

    def __init__(self):
        self.looked = []

    def damage(self, *, chunks):
        self.looked.append(chunks)
        return []


def test_an_open_catalog_is_looked_at_once_and_chunks_where_they_are_needed():
    catalog: Any = Watched()
    for rewriting in (False, False, True, True, False):
        gc_checks.check_undamaged(catalog, rewriting=rewriting)
    assert catalog.looked == [False, True]
