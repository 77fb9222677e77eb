"""Every operation on storage and every call of the catalog fails once, before or after it took effect."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from functools import partial

import pytest

import ckptstore
from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.errors import CatalogError, CatalogUnavailable, CkptStoreError
from ckptstore.store import Store
from ckptstore.testing.audit import CHUNK_BYTES, assert_exact, assert_nothing_leaked, assert_whole, site_of, state_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth, Meanwhile
from tests.failing import fail_catalog, fail_storage

KEPT = {("main", 2), ("main", 3)}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Steps 2 and 3 live, 0 deleted, 1 purged."""
    place = tmp_path_factory.mktemp("faults") / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
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


def untag(store):
    if "good" in store.tags():
        store.untag("good")


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
        untag,
    )
}
ADDED = {"commit": {("main", 4)}, "commit_in_background": {("main", 4)}, "restore_and_tag": {("main", 0)}}


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
        with site_of(place).open() as store:
            act(store)
        expected = KEPT - gone(name) | ADDED.get(name, set())
        assert assert_whole(place) == expected
        assert_nothing_leaked(place)
        assert assert_whole(place) == expected
        shutil.rmtree(place)
        if not failed:
            break
    assert n > 1 or (fail is fail_storage and name == "commit_the_same_again")


def gone(name):
    return {("main", 2)} if name == "keep_last" else set()


def try_once(place, act, fail):
    """Whether the failure came. An error must be of the tree, and the store must go on after it."""
    parts, counter = fail(site_of(place).parts())
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
    parts = site_of(place).parts()
    interrupted = replace(parts, storage=FailNth(parts.storage, n, KeyboardInterrupt()))
    with Store(interrupted, "main") as store, monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(parts.catalog), "end_session", end_session)
        commit(store)
    assert assert_whole(place) == KEPT
    assert_nothing_leaked(place)


@pytest.mark.parametrize("anew", [4, 5], ids=["the same", "another state"])
def test_a_lost_reply_to_a_commit_that_is_deleted_and_made_anew_at_once(template, tmp_path, monkeypatch, anew):
    place, commit = shutil.copytree(template, tmp_path / "store"), SqlCatalog.commit

    def losing(self, session, new):
        commit(self, session, new)
        monkeypatch.setattr(SqlCatalog, "commit", commit)
        with site_of(place).open() as other:
            other.delete(4)
            other.commit(state_of("main", anew), step=4)
        raise CatalogUnavailable("the reply was lost")

    monkeypatch.setattr(SqlCatalog, "commit", losing)
    with site_of(place).open() as store:
        made = store.commit(state_of("main", 4), step=4)
        assert made.deleted is not None
        assert made.id != store.find(4).id
        assert store.verify().ok


def test_a_commit_that_another_made_meanwhile_is_there_whatever_cannot_be_removed(template, tmp_path):
    place = shutil.copytree(template, tmp_path / "store")
    parts = site_of(place).parts()
    with site_of(place).open() as other:
        other.commit(state_of("main", 4), step=5)
        other.delete(5)  # its chunks are there, so that a document is all that is put
        stuck = FailNth(parts.storage, 1, verbs=frozenset({"delete"}))
        overtaken = Meanwhile(stuck, "put", partial(commit, other))
        with Store(replace(parts, storage=overtaken), "main") as store:
            made = store.commit(state_of("main", 4), step=4)
        assert stuck.failed
        assert made.id == other.find(4).id
    assert assert_whole(place) == KEPT | {("main", 4)}
    assert_nothing_leaked(place)
