"""Tags lie in storage beside the catalog, so that a lost catalog is made anew with them."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.errors import CatalogUnavailable, CkptStoreError, GcRefused, StepNotFound, StepProtected, StorageReadOnly
from ckptstore.store import Store
from ckptstore.testing.audit import Site, age_leftovers, assert_nothing_leaked, site_of
from ckptstore.testing.catalog_faults import failing_catalog
from ckptstore.testing.faults import FailNth, Meanwhile


def state(step):
    return {"w": torch.arange(100.0) + step}


def filled(place, **settings):
    with ckptstore.open(place, **settings) as store:
        for step in range(3):
            store.commit(state(step), step=step)
    return place


@pytest.fixture
def place(tmp_path):
    """Three steps."""
    return filled(tmp_path / "store")


def lose(place):
    for path in place.glob("catalog.sqlite*"):
        path.unlink()


def rebuilt(place, **settings):
    """The tags of a catalog that was made anew, and the reasons of what was left out."""
    lose(place)
    report = ckptstore.rebuild_catalog(place, **settings)
    with ckptstore.open(place, **settings) as store:
        return store.tags(), [left.reason for left in report.left_out]


def documents(place):
    return sorted(path.name for path in place.glob("tags/*"))


def test_they_survive_the_catalog(place):
    with ckptstore.open(place) as store:
        store.tag("best", 0)
        store.tag("good", 1)
        store.tag("best", 2)
        store.tag("gone", 1)
        store.untag("gone")
    with ckptstore.open(place, run="side") as store:
        store.commit(state(9), step=9)
        store.tag("best", 9)
    assert len(documents(place)) == 3
    assert rebuilt(place) == ({"best": 2, "good": 1}, [])
    with ckptstore.open(place, run="side") as store:
        assert store.tags() == {"best": 9}
    with ckptstore.open(place) as store:
        assert store.verify().ok
        with pytest.raises(StepProtected):
            store.delete("best")
        assert store.gc(keep=ckptstore.KeepLast(0), grace=0, most=1).deleted == (0,)
    assert_nothing_leaked(place)


def test_a_bucket_is_read_by_tag_without_its_catalog(sites):
    site: Site = sites()
    with site.open() as store:
        for step in range(3):
            store.commit(state(step), step=step)
        store.tag("best", 1)
    with ckptstore.open(site.url, storage_options=site.storage_options, read_only=True, create=False) as store:
        assert store.tags() == {"best": 1}
        assert torch.equal(store.checkout("best")["w"], state(1)["w"])
        with pytest.raises(StorageReadOnly):
            store.tag("best", 2)
        with pytest.raises(StorageReadOnly):
            store.untag("best")
    with site.open() as store:
        assert store.tags() == {"best": 1}


def test_those_of_an_encrypted_store_are_sealed(tmp_path):
    key = tmp_path / "key"
    key.write_text("a passphrase")
    place = filled(tmp_path / "store", encrypt=True, key_file=key)
    with ckptstore.open(place, key_file=key) as store:
        store.tag("a name", 1)
        assert store.verify().ok
    (name,) = documents(place)
    assert b"a name" not in (place / "tags" / name).read_bytes()
    assert rebuilt(place, key_file=key) == ({"a name": 1}, [])
    (place / "tags" / name).rename(place / "tags" / f"{'0' * 32}.tag")  # it is sealed for its place
    tags, (reason,) = rebuilt(place, key_file=key)
    assert tags == {}
    assert "0.tag" in reason


def move(store):
    store.tag("best", 2)


def remove(store):
    with suppress(ckptstore.TagNotFound):
        store.untag("best")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", ["storage", "catalog"])
@pytest.mark.parametrize("act", [move, remove])
def test_what_fails_leaves_the_old_tag_or_the_new_one(place, tmp_path, act, part, after):
    with ckptstore.open(place) as store:
        store.tag("best", 0)
    for n in itertools.count(1):
        here = shutil.copytree(place, tmp_path / str(n))
        if not fails(here, act, part, n, after):
            break
        with ckptstore.open(here) as store:
            told = store.tags()
        copy = shutil.copytree(here, tmp_path / f"{n} rebuilt")
        assert {told.get("best"), rebuilt(copy)[0].get("best")} <= {0, None if act is remove else 2}
        age_leftovers(here)
        with ckptstore.open(here) as store:
            store.gc()
            settled = store.tags()
            act(store)
        assert settled in ({}, {"best": 0}, {"best": 2})
        assert (rebuilt(here)[0] == {}) is (act is remove)
        assert_nothing_leaked(here)
    assert n > 1


def fails(place, act, part, n, after):
    parts = site_of(place).parts()
    storage = FailNth(parts.storage, n if part == "storage" else 10**6, after=after)
    catalog, calls = failing_catalog(parts.catalog, n if part == "catalog" else 10**6, after=after)
    with Store(replace(parts, storage=storage, catalog=catalog), "main") as store, suppress(CkptStoreError):
        act(store)
    return storage.failed or calls.failed


@pytest.fixture
def unacknowledged(place, monkeypatch):
    """A store whose tag `best` is at step 1, where who moved it from 0 to 2 died before the catalog knew."""
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        (known,) = documents(place)
        with monkeypatch.context() as patch, pytest.raises(CatalogUnavailable):
            patch.setattr(type(store._parts.catalog), "tag", unavailable)
            store.tag("best", 2)
    (new,) = set(documents(place)) - {known}
    return place, known, new


def unavailable(*_):
    raise CatalogUnavailable("the database is gone")


def test_gc_heeds_what_the_catalog_was_never_told_once_nobody_can_be_about_to_tell_it(unacknowledged):
    place, known, new = unacknowledged
    with ckptstore.open(place) as store:
        store.gc()
        assert (store.tags(), documents(place)) == ({"best": 1}, sorted([known, new]))
        age_leftovers(place)
        store.gc(keep=ckptstore.KeepLast(0), grace=0, most=1)
        assert (store.tags(), documents(place), store.steps()) == ({"best": 2}, [new], [1, 2])


def test_gc_removes_an_older_document_than_the_catalogs(unacknowledged):
    place, _, _ = unacknowledged
    with ckptstore.open(place) as store:
        store.tag("best", 0)
        (newest,) = {tag.document for tag in store._parts.catalog.tags()}
        age_leftovers(place)
        store.gc()
        assert (store.tags(), [f"tags/{name}" for name in documents(place)]) == ({"best": 0}, [newest])


def test_a_tag_of_a_commit_that_was_deleted_goes_with_it(unacknowledged):
    place, known, _ = unacknowledged
    age_leftovers(place)
    with ckptstore.open(place) as store:
        store.delete(2)
        store.gc()
        assert (store.tags(), documents(place)) == ({"best": 1}, [known])


def test_gc_under_an_older_catalog_leaves_the_tags_of_the_newer_one(place, tmp_path):
    older = shutil.copytree(place, tmp_path / "older")
    with ckptstore.open(place) as store:
        store.commit(state(3), step=3)
        store.tag("best", 3)
    lose(place)
    for path in older.glob("catalog.sqlite*"):
        shutil.copy(path, place)
    age_leftovers(place)
    with ckptstore.open(place) as store, pytest.raises(GcRefused, match="rebuild"):
        store.gc()
    assert rebuilt(place) == ({"best": 3}, [])


def test_gc_stores_what_is_missing(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        (document,) = (place / "tags").iterdir()
        document.unlink()
        assert store.verify().ok
        store.gc()
        assert document.exists()
    assert rebuilt(place) == ({"best": 1}, [])


def test_tags_of_a_catalog_that_had_no_documents_get_theirs(place):
    with ckptstore.open(place) as store:
        for name in ("best", "good", "gone"):
            store.tag(name, 1)
    shutil.rmtree(place / "tags")
    with sqlite3.connect(place / "catalog.sqlite") as database:
        database.execute("ALTER TABLE tags DROP COLUMN document")
        database.execute("UPDATE alembic_version SET version_num = '0002'")
    database.close()
    ckptstore.opening.migrate_catalog(place)
    with ckptstore.open(place) as store:
        store.untag("gone")
        store.tag("good", 2)
        assert store.tags() == {"best": 1, "good": 2}
        assert store.verify().ok
        store.gc()
    assert rebuilt(place) == ({"best": 1, "good": 2}, [])


def test_damage_is_told_and_never_costs_the_tag(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        store.tag("good", 0)
        documents = {tag.name: place / tag.document for tag in store._parts.catalog.tags()}
        damaged = bytearray(documents["best"].read_bytes())
        damaged[40] ^= 1
        documents["best"].write_bytes(damaged)
        age_leftovers(place)
        (problem,) = store.verify().problems
        assert problem.object == f"tags/{documents['best'].name}"
        assert "give main@1 the tag 'best' again" in problem.detail
        store.gc()
        assert store.tags() == {"best": 1, "good": 0}
        documents["best"].write_bytes(documents["good"].read_bytes())
        assert "another tag" in store.verify().problems[0].detail
        store.tag("best", 1)
        assert store.verify().ok
    assert rebuilt(place) == ({"best": 1, "good": 0}, [])


def test_files_of_somebody_else_below_tags_stay(place):
    (place / "tags").mkdir()
    (place / "tags" / "notes.txt").write_text("mine")
    os.utime(place / "tags" / "notes.txt", (0, 0))
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        store.gc(sweep=True)
        assert store.verify().ok
    assert (place / "tags" / "notes.txt").read_text() == "mine"
    assert rebuilt(place) == ({"best": 1}, [])


def test_one_that_is_refused_leaves_nothing(place):
    with ckptstore.open(place) as store:
        found = store.find(0)
        store.delete(0)
        with pytest.raises(StepNotFound, match="step 0"):
            store.tag("best", found)
    assert documents(place) == []


def test_a_tag_that_is_moved_while_it_is_removed_is_gone_with_its_document(place):
    with ckptstore.open(place) as other:
        other.tag("best", 0)
        parts = site_of(place).parts()
        meanwhile = Meanwhile(parts.storage, "delete", lambda: other.tag("best", 1))
        with Store(replace(parts, storage=meanwhile), "main") as store:
            store.untag("best")
        assert meanwhile.happened
        assert (other.tags(), documents(place)) == ({}, [])


def test_threads_that_move_one_tag_leave_one_document(place):
    def act(step):
        with ckptstore.open(place) as store:
            for _ in range(5):
                store.tag("best", step)

    threads = [threading.Thread(target=act, args=(step,)) for step in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ckptstore.open(place) as store:
        told = store.tags()
        (tag,) = store._parts.catalog.tags()
    assert [Path(tag.document).name] == documents(place)
    assert rebuilt(place) == (told, [])
