"""Documents of commits and tags are mended beside others who mend, purge and commit."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
import torch

import ckptstore
from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.errors import SessionFenced
from ckptstore.format.packs import pack_key
from ckptstore.operations.mending.documents import copies_of
from ckptstore.operations.mending.repair import plan_repair
from ckptstore.testing.audit import assert_nothing_leaked, expire_sessions, site_of
from ckptstore.testing.faults import Meanwhile


def state(step):
    return {"w": torch.arange(100.0) + step}


@pytest.fixture
def place(tmp_path):
    """Three steps, the second of which is tagged."""
    with ckptstore.open(tmp_path / "store") as store:
        for step in range(3):
            store.commit(state(step), step=step)
        store.tag("best", 1)
    return tmp_path / "store"


def twice(store):
    """A deleted commit and a live one of the same step."""
    deleted = store.find(0)
    store.delete(0)
    store.commit(state(50), step=0)
    return deleted, store.find(0)


def executed(place, verb, act):
    """A repair, right in which something else happens."""
    parts = site_of(place).parts()
    plan = plan_repair(parts)
    meanwhile = Meanwhile(parts.storage, verb, act)
    try:
        return replace(plan, chunks=replace(parts, storage=meanwhile)).execute()
    finally:
        assert meanwhile.happened


def test_what_is_purged_during_a_repair_is_not_reported_as_lost(place, monkeypatch):
    listed = SqlCatalog.commits

    def purging(self, *args, **options):
        found = listed(self, *args, **options)
        with monkeypatch.context() as patched, ckptstore.open(place) as other:
            patched.setattr(SqlCatalog, "commits", listed)
            other.delete(max(other.steps()))
            other.gc(grace=0)
        return found

    with ckptstore.open(place) as store:
        store.untag("best")
        plan = store.plan_repair()
        monkeypatch.setattr(SqlCatalog, "commits", purging)
        assert plan.execute().lost == ()


def test_what_is_purged_while_a_repair_is_planned_is_not_lost(place, monkeypatch):
    def purged(*args):
        with ckptstore.open(place) as other:
            other.delete(0)
            other.gc(grace=0)
        return copies_of(*args)

    monkeypatch.setattr("ckptstore.operations.mending.repair.copies_of", purged)
    with ckptstore.open(place) as store:
        store._parts.catalog.replace_manifest(store.find(0).id, b"nonsense")
        plan = store.plan_repair()
        assert (plan.lost, plan.documents) == ((), ())


@pytest.mark.parametrize("lost", ["deleted", "live"])
def test_of_two_commits_of_a_step_one_may_be_lost_and_the_other_mended(place, lost):
    with ckptstore.open(place) as store:
        commits = dict(zip(("deleted", "live"), twice(store), strict=True))
        for commit in commits.values():
            (place / commit.document).write_bytes(b"nonsense")
        store._parts.catalog.replace_manifest(commits[lost].id, b"nonsense")
        labels = {"deleted": "main@0 (deleted)", "live": "main@0"}
        assert {problem.affected for problem in store.verify().problems} == {(name,) for name in labels.values()}
        plan = store.plan_repair()
        (mended,) = {"deleted", "live"} - {lost}
        assert (plan.documents, plan.lost) == ((labels[mended],), (labels[lost],))
        assert (report := plan.execute()).documents == 1
        assert report.lost == (labels[lost],)
        assert not any(commits[mended].document == problem.object for problem in store.verify().problems)


@pytest.mark.parametrize("verb", ["delete", "restore"])
def test_what_is_deleted_or_restored_after_the_plan_is_mended(place, verb):
    with ckptstore.open(place) as store:
        (place / store.find(0).document).write_bytes(b"nonsense")
        if verb == "restore":
            store.delete(0)
        plan = store.plan_repair()
        getattr(store, verb)(0)
        assert plan.execute().documents == 1
        assert store.verify().ok


@pytest.mark.parametrize("level", ["sizes", "data"])
@pytest.mark.parametrize("document", [b"", None])
def test_the_document_of_a_deleted_step_is_reported_as_such(place, level, document):
    with ckptstore.open(place) as store:
        path = place / store.find(0).document
        store.delete(0)
        path.unlink() if document is None else path.write_bytes(document)
        assert [problem.affected for problem in store.verify(level=level).problems] == [("main@0 (deleted)",)]


def test_leaves_of_a_deleted_step_are_reported_as_such(place):
    with ckptstore.open(place) as store:
        (pack,) = store._parts.catalog.packs(store.find(0).id)
        store.delete(0)
        site_of(place).storage.delete(pack_key(pack.name))
        assert {leaf for problem in store.verify().problems for leaf in problem.affected} == {"main@0 (deleted) w"}
        assert store.repair().lost == ("main@0 (deleted) w",)


def test_two_repairs_at_once(place):
    with ckptstore.open(place) as store:
        (place / store.find(0).document).write_bytes(b"nonsense")
        assert executed(place, "put", store.repair).documents == 1
        assert store.verify().ok
    assert_nothing_leaked(place)


def test_what_is_purged_while_it_is_mended_stays_purged(place):
    with ckptstore.open(place) as store:
        store.commit(state(0), step=7)
        commit = store.find(7)
        store.delete(7)
        (place / commit.document).write_bytes(b"nonsense")
        executed(place, "put", lambda: store.gc(grace=0))
        assert not (place / commit.document).exists()
        assert store.verify().ok
    assert_nothing_leaked(place)


def test_what_is_purged_before_the_catalog_is_mended_stays_purged(place, monkeypatch):
    with ckptstore.open(place) as store:
        commit = store.find(0)
        store._parts.catalog.replace_manifest(commit.id, b"nonsense")
        store.delete(0)
        parts = site_of(place).parts()
        plan = plan_repair(parts)
        replace_manifest = parts.catalog.replace_manifest

        def late(*arguments):
            store.gc(grace=0)
            replace_manifest(*arguments)

        monkeypatch.setattr(parts.catalog, "replace_manifest", late)
        assert plan.execute().documents == 0
        assert store.verify().ok
    assert_nothing_leaked(place)


def test_no_document_mends_a_record_that_contradicts_it(place):
    with closing(sqlite3.connect(place / "catalog.sqlite")) as database, database:
        database.execute("UPDATE commits SET metadata = '{\"a\": 1}' WHERE step = 0")
    with ckptstore.open(place) as store:
        assert not store.verify().ok
        assert store.plan_repair().documents == ()
        assert store.repair().documents == 0


def test_who_gc_takes_for_dead_is_told(place):
    with ckptstore.open(place) as store:
        for document in (place / "tags").iterdir():
            document.write_bytes(b"nonsense")

        def fence():
            expire_sessions(place)
            store.gc()

        with pytest.raises(SessionFenced):
            executed(place, "put", fence)
        assert store.repair().tags == 1
        assert store.verify().ok
    assert_nothing_leaked(place)


def test_a_plan_that_is_executed_again_mends_nothing(place):
    with ckptstore.open(place) as store:
        for document in (place / "tags").iterdir():
            document.write_bytes(b"nonsense")
        (place / store.find(0).document).write_bytes(b"nonsense")
        plan = store.plan_repair()
        reports = [plan.execute(), plan.execute()]
        assert [(report.tags, report.documents) for report in reports] == [(1, 1), (0, 0)]


def test_a_folder_that_was_removed_comes_back(place):
    with ckptstore.open(place) as store:
        store.tag("good", 2)
        shutil.rmtree(place / "tags")
        assert len(store.verify("sizes").problems) == 2
        assert store.repair().tags == 2
        assert store.verify().ok
