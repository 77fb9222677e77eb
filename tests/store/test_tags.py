"""Tags lie in storage beside the catalog, so that a lost catalog is made anew with them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

import ckptstore
from ckptstore.errors import (
    CatalogUnavailable,
    CkptStoreError,
    GcRefused,
    StepNotFound,
    StepProtected,
    StorageFull,
    StorageReadOnly,
)
from ckptstore.format import envelope, tagging
from ckptstore.opening.documents import open_documents
from ckptstore.operations.mending.repair import plan_repair
from ckptstore.operations.verifying.tags import check_tags
from ckptstore.store import Store
from ckptstore.testing.audit import Site, assert_nothing_leaked, expire_sessions, site_of
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
            tags = store.tags()
        copy = shutil.copytree(here, tmp_path / f"{n} rebuilt")
        assert {tags.get("best"), rebuilt(copy)[0].get("best")} <= {0, None if act is remove else 2}
        with ckptstore.open(here) as store:
            act(store)
        assert_nothing_leaked(here)
        assert rebuilt(here) == ({} if act is remove else {"best": 2}, [])
    assert n > 1


def fails(place, act, part, n, after):
    parts = site_of(place).parts()
    storage = FailNth(parts.storage, n if part == "storage" else 10**6, after=after)
    catalog, calls = failing_catalog(parts.catalog, n if part == "catalog" else 10**6, after=after)
    with Store(replace(parts, storage=storage, catalog=catalog), "main") as store, suppress(CkptStoreError):
        act(store)
    return storage.failed or calls.failed


@pytest.fixture
def with_a_dead_worker(place, monkeypatch):
    """A tag of step 1, and a document of who died before it was moved to step 2, which is purged."""

    def unavailable(*_):
        raise CatalogUnavailable("the database is gone")

    with ckptstore.open(place) as store:
        store.tag("best", 1)
        with monkeypatch.context() as patch, pytest.raises(CatalogUnavailable):
            patch.setattr(type(store._parts.catalog), "tag", unavailable)
            store.tag("best", 2)
        store.gc(keep=ckptstore.KeepLast(0), grace=0, most=1)
        assert (store.tags(), store.steps(), len(documents(place))) == ({"best": 1}, [1], 2)  # it may be alive
    return place


def test_who_dies_before_the_catalog_is_told_has_not_moved_it(with_a_dead_worker):
    expire_sessions(with_a_dead_worker)
    with ckptstore.open(with_a_dead_worker) as store:
        store.gc()
        assert store.verify().ok
    assert_nothing_leaked(with_a_dead_worker)
    assert rebuilt(with_a_dead_worker) == ({"best": 1}, [])


def test_who_dies_before_the_catalog_is_told_does_not_cost_the_tag(with_a_dead_worker):
    unmoved = "the tag 'best' of run 'main' is of a commit that is not there"
    assert rebuilt(with_a_dead_worker) == ({"best": 1}, [unmoved])


def test_a_tag_that_moves_is_found_without_a_catalog(place):
    with ckptstore.open(place) as other:
        other.tag("best", 0)
        parts = site_of(place).parts()
        meanwhile = Meanwhile(parts.storage, "get", partial(other.tag, "best", 2))
        with Store(open_documents(meanwhile, parts.config, None, encrypt=False), "main") as store:
            assert store.tags() == {"best": 2}


@pytest.mark.parametrize("sweep", [False, True])
def test_gc_under_an_older_catalog_refuses_what_could_cost_a_tagged_commit(place, tmp_path, sweep):
    older = shutil.copytree(place, tmp_path / "older")
    with ckptstore.open(place) as store:
        store.tag("best", 0)
    lose(place)
    for path in older.glob("catalog.sqlite*"):
        shutil.copy(path, place)
    with ckptstore.open(place) as store:
        with pytest.raises(GcRefused, match=r"tags/\w+.tag is a tag that the catalog does not know.* rebuild it"):
            store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=sweep)
        assert store.steps() == [0, 1, 2]
        assert store.verify("catalog").ok
        (problem,) = store.verify("sizes").problems
        assert problem.object.startswith("tags/") and "rebuild it" in problem.detail
    assert rebuilt(place) == ({"best": 0}, [])
    with ckptstore.open(place) as store:
        assert store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=sweep).deleted == (1,)


def test_what_a_rebuild_left_out_is_no_newer_catalogs(place):
    with ckptstore.open(place) as store:
        store.tag("best", 0)
        (older,) = (place / "tags").iterdir()
        kept = older.read_bytes()
        store.tag("best", 1)
    older.write_bytes(kept)  # as a power cut may bring it back
    assert rebuilt(place) == ({"best": 1}, ["the tag 'best' of run 'main' was moved later"])
    with ckptstore.open(place) as store:
        store.gc(keep=ckptstore.KeepLast(1), grace=0)
        assert (store.steps(), older.exists()) == ([1, 2], False)
        store.untag("best")
    assert rebuilt(place) == ({}, [])


def test_that_of_a_commit_that_is_missing_for_now_stays(place, tmp_path):
    with ckptstore.open(place) as store:
        store.tag("best", 0)
        document = place / store.find(0).document
    document.rename(tmp_path / "away")
    assert rebuilt(place) == ({}, ["the tag 'best' of run 'main' is of a commit that is not there"])
    with ckptstore.open(place) as store:
        store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=True)
    shutil.copy(tmp_path / "away", document)
    assert rebuilt(place)[0] == {"best": 0}


def test_gc_stores_what_is_missing(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        (place / "tags" / documents(place)[0]).unlink()
        (problem,) = store.verify().problems
        assert re.match("the tag 'best' of main@1: no object at .*; run repair", problem.detail)
        store.gc()
        assert store.verify().ok
    assert_nothing_leaked(place)
    assert rebuilt(place) == ({"best": 1}, [])


@pytest.mark.parametrize("act", [move, remove])
def test_what_is_moved_or_removed_while_it_is_verified_is_no_damage(place, act):
    with ckptstore.open(place) as other:
        other.tag("best", 0)
        parts = site_of(place).parts()
        meanwhile = Meanwhile(parts.storage, "get", partial(act, other))
        assert list(check_tags(replace(parts, storage=meanwhile))) == []
        assert meanwhile.happened
        assert other.verify().ok


def test_gc_does_not_move_back_what_is_moved_meanwhile(place):
    with ckptstore.open(place) as other:
        other.tag("best", 0)
        (place / "tags" / documents(place)[0]).unlink()
        parts = site_of(place).parts()
        meanwhile = Meanwhile(parts.storage, "put", lambda: other.tag("best", 1))
        with Store(replace(parts, storage=meanwhile), "main") as store:
            store.gc()
        assert meanwhile.happened
        assert (other.tags(), len(documents(place))) == ({"best": 1}, 1)
        assert_nothing_leaked(place)


def test_a_full_disk_does_not_keep_gc_from_freeing(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        shutil.rmtree(place / "tags")
        store.delete(0)
    parts = site_of(place).parts()
    full = FailNth(parts.storage, 1, StorageFull("the disk is full"), verbs=frozenset({"put"}))
    with Store(replace(parts, storage=full), "main") as store:
        assert store.gc(grace=0).packs == 1
    assert full.failed


def test_tags_of_a_catalog_that_had_no_documents_get_theirs(place):
    with ckptstore.open(place) as store:
        for name in ("best", "good", "gone"):
            store.tag(name, 1)
    shutil.rmtree(place / "tags")
    with sqlite3.connect(place / "catalog.sqlite") as database:
        database.execute("ALTER TABLE tags DROP COLUMN document")
        database.execute("DROP TABLE left_out_documents")
        database.execute("UPDATE alembic_version SET version_num = '0002'")
    database.close()
    ckptstore.administering.migrate_catalog(place)
    with ckptstore.open(place) as store:
        store.untag("gone")
        store.tag("good", 2)
        assert store.tags() == {"best": 1, "good": 2}
        assert store.verify().ok
        store.gc()
        assert store.verify().ok
    assert rebuilt(place) == ({"best": 1, "good": 2}, [])


def test_damage_is_reported_and_never_costs_the_tag(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        store.tag("good", 0)
        documents = {tag.name: place / tag.document for tag in store._parts.catalog.tags()}
        damaged = bytearray(documents["best"].read_bytes())
        damaged[40] ^= 1
        documents["best"].write_bytes(damaged)
        (problem,) = store.verify().problems
        assert problem.object == f"tags/{documents['best'].name}"
        assert problem.detail.endswith("run repair")
        store.gc()
        assert store.tags() == {"best": 1, "good": 0}
        documents["best"].write_bytes(documents["good"].read_bytes())
        (problem,) = store.verify().problems
        assert problem.detail == "tells of something else than the tag 'best' of main@1; run repair"
        store.tag("best", 1)
        assert store.verify().ok
    assert rebuilt(place) == ({"best": 1, "good": 0}, [])


def test_a_repair_stores_damaged_and_missing_documents_anew(place):
    with ckptstore.open(place, run="other") as store:
        store.commit({"w": torch.ones(3)}, step=5)
        store.tag("best", 5)
    with ckptstore.open(place) as store:
        for name in ("best", "good", "gone", "other"):
            store.tag(name, 1)
        documents = {(tag.run, tag.name): place / tag.document for tag in store._parts.catalog.tags()}
        documents["main", "best"].write_bytes(b"nonsense")
        documents["main", "good"].write_bytes(documents["other", "best"].read_bytes())
        documents["main", "gone"].unlink()
        plan = store.plan_repair()
        assert plan.tags == ("main@best", "main@gone", "main@good")
        assert (plan.packs, plan.documents, plan.lost) == ((), (), ())
        assert len(store.verify().problems) == 3
        report = plan.execute()
        assert (report.tags, report.documents, report.lost) == (3, 0, ())
        assert store.verify().ok
        assert store.tags() == {"best": 1, "good": 1, "gone": 1, "other": 1}
        assert store.plan_repair().tags == ()
    assert documents["main", "other"].exists()
    assert len(list((place / "tags").iterdir())) == 5
    assert rebuilt(place) == ({"best": 1, "good": 1, "gone": 1, "other": 1}, [])


def test_a_document_that_is_empty_or_gone_is_reported(place):
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        (document,) = (place / "tags").iterdir()
        document.write_bytes(b"")
        (problem,) = store.verify().problems
        assert (
            problem.detail
            == f"the tag 'best' of main@1: tag document tags/{document.name}: it was cut short; run repair"
        )
        document.unlink()
        (problem,) = store.verify("sizes").problems
        assert problem.detail == "the tag 'best' of main@1: its document is not there; run repair"
        assert store.verify("catalog").ok


def test_a_tag_of_another_run_than_its_commit_is_nobodys(place):
    with ckptstore.open(place, run="other") as store:
        store.commit(state(9), step=9)
    with ckptstore.open(place) as store:
        key, config = tagging.new_tag_key(), store._parts.config
        document = tagging.TagDocument(store=config.id, run="other", name="best", commit=store.find(0).id, created=1.0)
        (place / "tags").mkdir()
        (place / key).write_bytes(tagging.encode(document, key, None))
        assert store.verify().ok
        store.gc(keep=ckptstore.KeepLast(1), grace=0)
        assert store.steps() == [2]


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("act", "left"), [(move, {"best": 2}), (remove, {})])
def test_a_repair_leaves_a_tag_where_it_was_moved_to_meanwhile(place, within, act, left):
    with ckptstore.open(place) as other:
        other.tag("best", 0)
        (place / "tags" / documents(place)[0]).write_bytes(b"nonsense")
        parts = site_of(place).parts()
        plan = plan_repair(parts)
        meanwhile = Meanwhile(parts.storage, "put", partial(act, other))
        if not within:
            act(other)
        report = replace(plan, chunks=replace(parts, storage=meanwhile)).execute()
        assert (meanwhile.happened, report.tags) == (within, 0)
        assert other.tags() == left
        assert other.verify().ok
    assert rebuilt(place) == (left, [])


DEEP = b"\x91" * 200_000
FIELDS = {"run": "main", "name": "best", "created": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"run": "a@b"},
        {"name": "7"},
        {"created": float("nan")},
        {"created": "now"},
        {"store": "0" * 32},
        {"commit": "a\0b"},
        {"commit": 7},
        {"later": msgspec.Raw(DEEP + b"\xc0")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_no_writer_makes_is_left_out(place, change):
    with ckptstore.open(place) as store:
        fields = FIELDS | {"store": store._parts.config.id, "commit": store.find(0).id} | change
    (place / "tags").mkdir()
    (place / "tags" / f"{'0' * 32}.tag").write_bytes(envelope.wrap(msgspec.msgpack.encode(fields), b"ckpttags"))
    tags, reasons = rebuilt(place)
    assert (tags, len(reasons)) == ({}, 1)
    with ckptstore.open(place) as store:
        store.tag("best", 1)
        store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=True)
        assert store.verify().ok


@pytest.mark.parametrize("sweep", [False, True])
def test_a_damaged_tag_that_a_rebuild_left_out_may_protect_a_step(place, sweep):
    with ckptstore.open(place) as store:
        store.tag("best", 0)
    (path,) = (place / "tags").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    assert rebuilt(place)[0] == {}
    with ckptstore.open(place) as store:
        (problem,) = store.verify("sizes").problems
        assert problem.object == f"tags/{path.name}" and "tag that step again and remove it" in problem.detail
        with pytest.raises(GcRefused, match=rf"tags/{path.name} is damaged, and may be a tag"):
            store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=sweep)
        assert store.steps() == [0, 1, 2]
    path.write_bytes(whole)
    assert rebuilt(place) == ({"best": 0}, [])
    with ckptstore.open(place) as store:
        assert store.gc(keep=ckptstore.KeepLast(1), grace=0, sweep=sweep).deleted == (1,)


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
        tags = store.tags()
        (tag,) = store._parts.catalog.tags()
    assert [Path(tag.document).name] == documents(place)
    assert rebuilt(place) == (tags, [])


def test_threads_that_tag_and_untag_beside_gc_leave_what_the_catalog_tells(place):
    def move_about(name):
        with ckptstore.open(place) as store:
            for step in (0, 1, 2, None, 1, None):
                if step is None:
                    store.untag(name)
                else:
                    store.tag(name, step)

    def collect():
        with ckptstore.open(place) as store:
            for _ in range(10):
                store.gc(grace=0)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(move_about, "best"), pool.submit(move_about, "good"), pool.submit(collect)]:
            done.result()
    assert documents(place) == []
    assert_nothing_leaked(place)
    assert rebuilt(place) == ({}, [])
