"""A lost catalog is made anew from storage, and a store is read without one."""

from __future__ import annotations

import errno
import math
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import fsspec
import msgspec
import pytest
import torch

import ckptstore
from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import (
    CatalogError,
    CatalogNotFound,
    CatalogUnavailable,
    GcRefused,
    InvalidArgument,
    NotAStore,
    ObjectNotFound,
    StepExists,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    WrongKey,
)
from ckptstore.format import document
from ckptstore.format.packs import pack_key
from ckptstore.opening import catalogs, documents
from ckptstore.storage import open_storage
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store
from ckptstore.testing.audit import assert_exact, assert_nothing_leaked, assert_whole, files, site_of, state_of
from ckptstore.testing.catalog_faults import failing_catalog
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth, Meanwhile, Recording


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "store"
    with ckptstore.open(place, chunk_bytes=4096) as store:
        for step in range(5):
            store.commit(state_of("main", step), step=step, metadata={"loss": step / 2})
        store.commit(state_of("side", 7), step=7, run="side", parent="main@3")
        store.delete(0)
        store.gc(grace=0)
    return place


def contents(place, **options):
    """Everything that a rebuild gives back."""
    with ckptstore.open(place, **options) as store:
        runs = [(run.name, run.commits, run.latest, run.forked_from) for run in store.runs()]
    commits = []
    for name, *_ in runs:
        with ckptstore.open(place, run=name, **options) as store:
            commits += store.log()
    assert all(time.time() - 600 < one.created <= time.time() for one in commits)
    return runs, [
        (one.id, one.run, one.step, one.parent_ref, one.metadata, one.content, one.leaves, one.document)
        for one in commits
    ]


def lose(place):
    for path in place.glob("catalog.sqlite*"):
        path.unlink()


def test_everything_comes_back(place):
    before = contents(place)
    lose(place)
    with pytest.raises(CatalogError, match="ckptstore rebuild"):
        ckptstore.open(place)
    lose(place)  # opening began one, and did not bind it
    report = ckptstore.rebuild_catalog(place)
    assert (report.commits, report.left_out) == (5, ())
    assert contents(place) == before
    assert assert_whole(place) == {("main", 1), ("main", 2), ("main", 3), ("main", 4), ("side", 7)}
    with ckptstore.open(place) as store:
        store.commit(state_of("main", 8), step=8)
        assert store.find(8).parent_ref == "main@4"
        assert store.stats().stored_bytes == sum(path.stat().st_size for path in place.rglob("*.pack"))
    assert_nothing_leaked(place)


def test_it_can_be_done_over_what_opening_began(place):
    before = contents(place)
    lose(place)
    with pytest.raises(CatalogError):
        ckptstore.open(place)
    ckptstore.rebuild_catalog(place)
    assert contents(place) == before


def test_a_catalog_that_is_one_is_left_alone(place):
    before = contents(place)
    with pytest.raises(CatalogError, match="move it away"):
        ckptstore.rebuild_catalog(place)
    assert contents(place) == before


def test_another_database(place, tmp_path, postgres):
    before = contents(place)
    with pytest.raises(CatalogError, match="has a catalog of its own"):
        ckptstore.rebuild_catalog(place, catalog=postgres)
    lose(place)
    ckptstore.rebuild_catalog(place, catalog=postgres)
    assert contents(place, catalog=postgres) == before


def test_what_is_damaged_is_named_and_left_out(place):
    with ckptstore.open(place) as store:
        document = Path(place, store.find(4).document)
    only = {one.name for one in _packs(place, "side@7")} - {one.name for one in _packs(place, "main@3")}
    lost = next(path for path in place.rglob("*.pack") if path.stem in only)
    lost.unlink()
    document.write_bytes(document.read_bytes()[:-20])
    lose(place)
    report = ckptstore.rebuild_catalog(place)
    reasons = {left.object: left.reason for left in report.left_out}
    assert report.commits == 3 and len(reasons) == 2
    assert "side@7" in next(reason for key, reason in reasons.items() if "side" in key)
    assert "cut short" in reasons[document.relative_to(place).as_posix()]
    assert_whole(place, verified=False)
    with ckptstore.open(place) as store:
        assert {problem.object for problem in store.verify().problems} == reasons.keys()


def _packs(place, step):
    with ckptstore.open(place) as store:
        return store._parts.catalog.packs(store.find(step).id)


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_footer_costs_nothing(place, cut):
    victim = max(place.rglob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-50] ^= 1
    victim.write_bytes(data[:-30] if cut else data)
    lose(place)
    report = ckptstore.rebuild_catalog(place)
    assert (report.commits, report.left_out) == (5, ())
    with ckptstore.open(place) as store:
        assert {victim.name} == {problem.object.rpartition("/")[2] for problem in store.verify().problems}
        assert store.repair().lost == ()
    assert len(assert_whole(place)) == 5
    assert_nothing_leaked(place)


def left_out_for_a_pack(place):
    """main@5, which a rebuild left out: its document, and the pack that is missing."""
    with ckptstore.open(place) as store:
        document = place / store.commit(state_of("main", 5), step=5).document
    only = {one.name for one in _packs(place, "main@5")} - {one.name for one in _packs(place, "main@4")}
    (pack,) = [path for path in place.rglob("*.pack") if path.stem in only]
    kept = shutil.move(pack, place.parent / pack.name)
    lose(place)
    (left,) = ckptstore.rebuild_catalog(place).left_out
    assert left.object == document.relative_to(place).as_posix() and "main@5" in left.reason
    return document, pack, kept


def test_a_step_made_anew_takes_the_place_of_what_was_left_out(place):
    """Its chunks are all there again, so its older document would count as a commit of a newer catalog."""
    document, _, _ = left_out_for_a_pack(place)
    with ckptstore.open(place) as store:
        store.gc()
        assert document.exists()
        made = store.commit(state_of("main", 5), step=5)
        assert store.verify().problems == ()
        store.gc(grace=0)
        assert not document.exists()
        store.delete(5)
        store.gc(grace=0)
        made = store.commit(state_of("main", 5), step=5)
    assert_nothing_leaked(place)
    lose(place)
    assert ckptstore.rebuild_catalog(place).left_out == ()
    with ckptstore.open(place) as store:
        assert store.find(5).id == made.id
    assert len(assert_whole(place)) == 6


def test_what_was_left_out_comes_back_with_its_pack(place):
    document, pack, kept = left_out_for_a_pack(place)
    shutil.move(kept, pack)
    with ckptstore.open(place) as store, pytest.raises(GcRefused, match="is a whole commit that the catalog"):
        store.gc(sweep=True)
    lose(place)
    assert ckptstore.rebuild_catalog(place).left_out == ()
    with ckptstore.open(place) as store:
        assert document == place / store.find(5).document
        store.delete(5)
        store.commit(state_of("main", 50), step=5)
        store.delete(5)
        store.gc(grace=600)
    assert document.exists()
    assert_whole(place)


def test_the_same_state_again_makes_nothing_anew(place):
    """The older commit of a step is back, since the newer one was left out; a retry of the older changes nothing."""
    with ckptstore.open(place) as store:
        older = store.commit(state_of("main", 50), step=5)
        store.delete(5)
    document, pack, kept = left_out_for_a_pack(place)
    with ckptstore.open(place) as store:
        assert store.commit(state_of("main", 50), step=5).id == older.id
        store.gc(grace=0)
    shutil.move(kept, pack)
    lose(place)
    ckptstore.rebuild_catalog(place)
    with ckptstore.open(place) as store:
        assert place / store.find(5).document == document


def test_who_dies_committing_the_same_again_changes_nothing(place):
    """A document of its own would be the newer one of the step, and tags are of the older one."""
    with ckptstore.open(place) as store:
        store.tag("best", 4)
    before = contents(place)
    parts = site_of(place).parts()
    dying = FailNth(parts.storage, 1, KeyboardInterrupt(), after=True, verbs=frozenset({"put"}))
    with suppress(KeyboardInterrupt), Store(replace(parts, storage=dying), "main") as store:
        store.commit(state_of("main", 4), step=4, metadata={"loss": 7})
    lose(place)
    ckptstore.rebuild_catalog(place)
    assert contents(place) == before
    with ckptstore.open(place) as store:
        assert store.tags() == {"best": 4}


@pytest.mark.parametrize("anew", [False, True])
def test_a_rebuild_that_is_run_again_leaves_out_nothing_that_it_entered(place, monkeypatch, anew):
    """A catalog that does not answer ends the first one; a pack is away in the second."""
    with ckptstore.open(place) as store:
        store.tag("four", 4)
        made = store.commit(state_of("main", 5), step=5)
    only = {one.name for one in _packs(place, "main@5")} - {one.name for one in _packs(place, "main@4")}
    (pack,) = [path for path in place.rglob("*.pack") if path.stem in only]
    lose(place)

    def silent(self, records):
        raise CatalogUnavailable("no answer")

    with monkeypatch.context() as patch, pytest.raises(CatalogUnavailable):
        patch.setattr(SqlCatalog, "enter_tags", silent)
        ckptstore.rebuild_catalog(place)
    kept = shutil.move(pack, place.parent / pack.name)
    ckptstore.rebuild_catalog(place)
    shutil.move(kept, pack)
    with ckptstore.open(place) as store:
        if anew:
            store.delete(5)
            store.commit(state_of("main", 55), step=5)
        else:
            assert store.commit(state_of("main", 5), step=5).id == made.id
        store.gc()
        assert (place / made.document).exists()
        assert store.verify().ok
        store.delete(5)
        store.gc(grace=0)
    assert_nothing_leaked(place)


def test_a_step_made_anew_is_the_newer_one(place):
    with ckptstore.open(place) as store:
        store.delete(4)
        store.commit(state_of("main", 40), step=4)
        store.delete(3)
    lose(place)
    report = ckptstore.rebuild_catalog(place)
    assert [left.reason for left in report.left_out] == ["main@4 was made anew later"]
    with ckptstore.open(place) as store:
        assert store.steps() == [1, 2, 3, 4]  # 3 was deleted, and could still be restored
        assert store.checkout(4)["step"] == 40


@pytest.mark.parametrize("at_once", [False, True])
def test_a_commit_that_was_refused_is_none(place, at_once):
    """Of plain values alone, so that nothing but its document could be stored."""
    parts, first = site_of(place).parts(), partial(commit_step_5, place, "first")
    seen = Recording(Meanwhile(parts.storage, "put", first) if at_once else parts.storage)
    if not at_once:
        first()
    with Store(replace(parts, storage=seen), "main") as store, pytest.raises(StepExists):
        store.commit({"x": "second"}, step=5)
    assert seen.operations["put"] == at_once  # who is killed behind that leaves it
    assert len(list(place.glob("manifests/main/000000000005.*"))) == 1
    with ckptstore.open(place) as store:
        assert store.read(5, "x") == "first"
    lose(place)
    assert ckptstore.rebuild_catalog(place).left_out == ()
    with ckptstore.open(place) as store:
        assert store.read(5, "x") == "first"


def commit_step_5(place, value):
    with ckptstore.open(place) as store:
        store.commit({"x": value}, step=5)


def test_a_document_that_is_removed_meanwhile_is_left_out(place, monkeypatch):
    """By a gc that goes on while somebody opens the store without its catalog."""
    seen = set()
    get = LocalStorage.get

    def read(self, key):
        if "000000000002" in key and key in seen:
            raise ObjectNotFound(f"no object at {key}")
        seen.add(key)
        return get(self, key)

    monkeypatch.setattr(LocalStorage, "get", read)
    lose(place)
    with pytest.warns(UserWarning, match=r"000000000002.* is left out: no object"):
        store = ckptstore.open(place, read_only=True)
    with store:
        assert store.steps() == [1, 3, 4]
        assert_exact(store, "main", 3)


def opened_amid(place, act):
    """The store, opened without its catalog, while something happens before the first pack is read."""
    parts = site_of(place).parts()
    meanwhile = Meanwhile(parts.storage, "get_ranges", act)
    opened = documents.open_documents(meanwhile, parts.config, None, encrypt=False)
    assert meanwhile.happened
    parts.close()
    return Store(opened, "main")


def test_a_commit_that_is_made_while_a_store_is_opened_without_its_catalog_is_not_reported_as_left_out(place, recwarn):
    def commit():
        with site_of(place).open() as other:
            other.commit(state_of("main", 5), step=5)
            other.tag("best", 5)

    with opened_amid(place, commit) as store:
        assert set(store.steps()) >= {1, 2, 3, 4}
        for step in store.steps():
            assert_exact(store, "main", step)
    assert not list(recwarn)


@pytest.mark.parametrize("step", [4, 5], ids=["an older commit", "a new commit"])
def test_a_tag_that_moves_while_a_store_is_opened_without_its_catalog_is_where_it_was(place, recwarn, step):
    with site_of(place).open() as store:
        store.tag("best", 3)

    def move():
        with site_of(place).open() as other:
            other.commit(state_of("main", 5), step=5)
            other.tag("best", step)

    with opened_amid(place, move) as store:
        assert store.tags() == {"best": 3}
    assert not list(recwarn)


def test_a_store_is_opened_without_its_catalog_also_while_commits_come_faster_than_packs_are_listed(place, recwarn):
    steps = iter(range(5, 10))

    class Busy(Intercepted):
        def intercept(self, verb, key, operation):
            if (verb, key) == ("list", "packs/"):
                step = next(steps)
                with site_of(place).open() as other:
                    other.commit(state_of("main", step), step=step)
            return operation()

    parts = site_of(place).parts()
    with Store(documents.open_documents(Busy(parts.storage), parts.config, None, encrypt=False), "main") as store:
        assert store.steps() == [1, 2, 3, 4]
    assert not list(recwarn)
    parts.close()


def test_what_gc_moves_while_a_store_is_opened_without_its_catalog_is_found(tmp_path, recwarn):
    blocks = {f"{number}": torch.arange(10_240) * (number + 1) for number in range(8)}
    place = tmp_path / "store"
    with site_of(place).open(chunk_bytes=4096) as store:
        store.commit(blocks, step=0)
        store.commit({"0": blocks["0"]}, step=1)
        store.delete(0)
        store.gc(grace=0)

    def move():
        with site_of(place).open() as other:
            assert other.gc(grace=0).rewritten == 1

    with opened_amid(place, move) as store:
        assert store.steps() == [1]
        assert_same(store.checkout(1), {"0": blocks["0"]})
    assert not list(recwarn)


def test_an_interrupted_one_is_done_again(place, monkeypatch):
    before = contents(place)
    lose(place)
    original, counted = LocalStorage.get, []

    def get(self, key):
        counted.append(key)
        if len(counted) == 9:
            raise StorageError("the network is gone")
        return original(self, key)

    monkeypatch.setattr(LocalStorage, "get", get)
    with pytest.raises(StorageError, match="network"):
        ckptstore.rebuild_catalog(place)
    with pytest.raises(CatalogError, match="rebuild"):
        ckptstore.open(place)
    assert ckptstore.rebuild_catalog(place).commits == 5
    assert contents(place) == before


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_of_two_at_once_the_slower_one_is_told(place, monkeypatch, request, backend):
    url = request.getfixturevalue("postgres") if backend == "postgres" else None
    before = contents(place)
    lose(place)
    enter = SqlCatalog.enter

    def overtaken(self, new):
        monkeypatch.setattr(SqlCatalog, "enter", enter)
        ckptstore.rebuild_catalog(place, catalog=url)
        enter(self, new)

    monkeypatch.setattr(SqlCatalog, "enter", overtaken)
    with pytest.raises(CatalogError, match="as a second rebuild would: let it end, and try again"):
        ckptstore.rebuild_catalog(place, catalog=url)
    assert contents(place, catalog=url) == before


@pytest.mark.parametrize("error", [StorageUnavailable("it did not answer"), StorageError("403 Forbidden")])
@pytest.mark.parametrize("kind", ["manifests/", "packs/"])
def test_what_cannot_be_read_now_is_not_left_out(place, tmp_path, monkeypatch, kind, error):
    """It may be there again soon, and a catalog without its commits would be believed."""
    before = contents(place)
    lose(place)
    (tmp_path / "temporary").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        refuse_once(patched, kind, error)
        with pytest.raises(StorageError, match=str(error)):
            ckptstore.open(place, read_only=True)
        assert list((tmp_path / "temporary").iterdir()) == []
        refuse_once(patched, kind, error)
        with pytest.raises(StorageError, match=str(error)):
            ckptstore.rebuild_catalog(place)
    with pytest.raises(CatalogError, match="rebuild"):
        ckptstore.open(place)
    assert ckptstore.rebuild_catalog(place).left_out == ()
    assert contents(place) == before


def refuse_once(patched, kind, error):
    """The third object of a kind is read in vain."""
    verb = {"manifests/": "get", "packs/": "get_ranges"}[kind]
    original, seen = getattr(LocalStorage, verb), []

    def read(self, key, *rest):
        seen.extend([key] if key.startswith(kind) else [])
        if key.startswith(kind) and len(seen) == 3:
            raise error
        return original(self, key, *rest)

    patched.setattr(LocalStorage, verb, read)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", range(3, 9))
def test_one_that_was_killed_at_any_call_is_done_again(place, monkeypatch, n, after):
    before = contents(place)
    lose(place)
    with monkeypatch.context() as patched:
        patched.setattr(documents, "open_catalog", lambda *args, **options: _failing(n, after, *args, **options))
        with suppress(CatalogError):
            ckptstore.rebuild_catalog(place)
    with suppress(CatalogError):  # it was done, or had not begun
        ckptstore.rebuild_catalog(place)
    assert contents(place) == before
    assert_whole(place)
    assert_nothing_leaked(place)


def _failing(n, after, *args, **options):
    return failing_catalog(open_catalog(*args, **options), n, after=after)[0]


def test_a_copied_store_is_a_store(place, tmp_path):
    before = contents(place)
    shutil.copytree(place, tmp_path / "copy")
    shutil.rmtree(place)
    assert contents(tmp_path / "copy") == before
    assert_whole(tmp_path / "copy")


@pytest.fixture(params=[False, True])
def healed(tmp_path, monkeypatch, request):
    """A store in which a chunk that step 1 lost came back with step 2; packs are listed from either end."""
    original = LocalStorage.list

    def in_order(self, prefix):
        return iter(sorted(original(self, prefix), key=lambda info: info.modified, reverse=request.param))

    monkeypatch.setattr(LocalStorage, "list", in_order)
    place = tmp_path / "healed"
    with ckptstore.open(place, compression="none") as store:
        store.commit({"a": A, "b": B}, step=1)
        [pack] = place.rglob("*.pack")
        data = bytearray(pack.read_bytes())
        data[bytes(data).find(A.numpy().tobytes()) + 5] ^= 1
        pack.write_bytes(data)
        assert store.repair().lost == ("main@1 a",)
        store.commit({"a": A}, step=2)
        assert store.verify().ok
    return place


A, B = torch.arange(1000) * 3, torch.arange(1000) * 5


def test_of_two_copies_the_good_one_is_found(healed):
    lose(healed)
    with ckptstore.open(healed, read_only=True) as store:
        assert_same(store.checkout(1), {"a": A, "b": B})
    assert ckptstore.rebuild_catalog(healed).left_out == ()
    with ckptstore.open(healed) as store:
        assert store.verify().ok
        for pack in healed.rglob("*.pack"):
            os.utime(pack, (0, 0))
        assert store.gc(sweep=True).packs == 1  # the damaged one
        assert_same(store.checkout(1), {"a": A, "b": B})
        assert_same(store.checkout(2), {"a": A})


def test_a_pack_is_needed_for_what_is_nowhere_else(healed):
    """Of the damaged one, which holds a copy that is not good, and of the good one there is nothing."""
    with ckptstore.open(healed) as store:
        [other] = [pack for pack in store._parts.catalog.packs() if pack.state == "live" and pack.needed_by == 1]
    Path(healed, pack_key(other.name)).unlink()  # where repair had moved the other chunk to
    lose(healed)
    assert ckptstore.rebuild_catalog(healed).left_out == ()
    with ckptstore.open(healed) as store:
        assert_same(store.checkout(1), {"a": A, "b": B})
        assert not store.verify().ok
        assert store.repair().lost == ()
        assert store.verify().ok
        assert_same(store.checkout(1), {"a": A, "b": B})


def test_copies_that_are_all_damaged_are_kept(healed):
    for pack in healed.rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        at = bytes(data).find(A.numpy().tobytes()[8:])
        if at >= 0:
            data[at + 500] ^= 1
            pack.write_bytes(data)
    lose(healed)
    assert ckptstore.rebuild_catalog(healed).left_out == ()
    with ckptstore.open(healed) as store:
        assert store.repair().lost == ("main@1 a", "main@2 a")
        assert_same(store.checkout(1, paths="b"), {"b": B})


def test_somebodys_copies_of_packs_are_left_out(place):
    before = contents(place)
    copies = [shutil.copy(path, path.with_name(f"{path.stem}.copy.pack")) for path in place.rglob("*.pack")]
    lose(place)
    left = {left.object for left in ckptstore.rebuild_catalog(place).left_out}
    assert left == {Path(copy).relative_to(place).as_posix() for copy in copies}
    for copy in copies:
        Path(copy).unlink()
    assert contents(place) == before
    assert_whole(place)


def test_an_opening_without_catalog_that_fails_leaves_no_folder(place, tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}"
    fsspec.filesystem("memory").put(str(place), f"/{tmp_path.name}", recursive=True)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with monkeypatch.context() as patched:
        patched.setattr(documents, "open_catalog", lambda *args, **options: _failing(3, False, *args, **options))
        with pytest.raises(CatalogError, match="injected"):
            ckptstore.open(url)
    assert list((tmp_path / "temporary").iterdir()) == []
    with ckptstore.open(url) as store:
        assert store.steps() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EACCES, StorageReadOnly),
        (errno.EROFS, StorageReadOnly),
        (errno.ENOENT, StorageError),
    ],
)
def test_a_temporary_folder_that_cannot_be_made_is_named(place, monkeypatch, number, kind):
    lose(place)

    def refuse(folder, mode=0o777):
        raise OSError(number, os.strerror(number), folder)

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", "/some/where")
        patched.setattr(os, "mkdir", refuse)
        message = rf"cannot make /some/where/ckptstore-\w+ .*: {os.strerror(number)}; set TMPDIR to .* or give catalog="
        with pytest.raises(kind, match=message) as raised:
            ckptstore.open(place, read_only=True)
    assert raised.type is kind


def test_no_usable_temporary_folder_is_an_error_of_the_tree(place, monkeypatch):
    lose(place)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/some/where"])
    with pytest.raises(StorageError, match=r"cannot make a temporary folder .*'/some/where'.*; set TMPDIR to"):
        ckptstore.open(place, read_only=True)


def test_another_empty_database_is_left_empty(place, tmp_path):
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(CatalogError, match=r"is empty, but .* holds commits: .*rebuild"):
        ckptstore.open(place, catalog=f"sqlite:///{tmp_path}/empty.sqlite")
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    with pytest.raises(CatalogNotFound, match="the database is empty: ckptstore init makes one, ckptstore rebuild"):
        ckptstore.open(place, catalog=f"sqlite:///{tmp_path}/empty.sqlite", create=False)


def test_a_catalog_that_another_process_made_meanwhile_is_taken(place, tmp_path):
    """With a commit already: both found the database empty."""
    storage = open_storage(tmp_path / "other")
    other = f"sqlite:///{tmp_path}/other.sqlite"
    (tmp_path / "other.sqlite").touch()

    def make(url):
        with ckptstore.open(tmp_path / "other", catalog=other) as store:
            store.commit({"x": 1}, step=1)
        catalogs.check_no_commits(storage, url)

    with closing(open_catalog(other, create=True, before_making=make)) as catalog:
        assert catalog.steps("main") == [1]


def test_no_store(tmp_path):
    with pytest.raises(NotAStore):
        ckptstore.rebuild_catalog(tmp_path)
    assert list(tmp_path.iterdir()) == []


# without a catalog


@pytest.fixture(params=["s3", "gcs"])
def bucket(request):
    return request.getfixturevalue(request.param)


def test_a_remote_store_is_read_without_its_catalog(bucket, postgres):
    options = {"storage_options": bucket.options}
    with pytest.raises(InvalidArgument, match="catalog="):
        ckptstore.open(bucket.url, **options)
    with ckptstore.open(bucket.url, catalog=postgres, chunk_bytes=4096, **options) as store:
        for step in range(3):
            store.commit(state_of("main", step), step=step, metadata={"loss": step})
        store.commit(state_of("side", 3), step=3, run="side", parent="main@2")
    assert contents(bucket.url, **options) == contents(bucket.url, catalog=postgres, **options)
    with ckptstore.open(bucket.url, **options) as store:
        for step in range(3):
            assert_exact(store, "main", step)
        assert store.read(1, "model/own", index=slice(3)).shape == (3,)
        assert store.diff(0, 1).changes and store.stats().commits == 4 and store.verify().ok
        assert store.latest() == 2 and store.tags() == {} and len(store.runs()) == 2
        for act in (
            lambda: store.commit(state_of("main", 9), step=9),
            lambda: store.commit_async(state_of("main", 9), step=9).result(),
            lambda: store.delete(0),
            lambda: store.tag("best", 0),
            lambda: store.gc(ckptstore.KeepLast(1)),
        ):
            with pytest.raises(StorageReadOnly, match="give catalog="):
                act()


@pytest.mark.parametrize("kind", [None, "lustre"])
def test_a_folder_is_read_without_its_catalog(place, monkeypatch, kind):
    before = contents(place)
    lose(place)
    there = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    monkeypatch.setattr(catalogs, "network_file_system", lambda _: kind)
    assert contents(place, read_only=True) == before
    with ckptstore.open(place, read_only=True) as store:
        assert_exact(store, "main", 4)
        assert store.verify().ok and store.tags() == {}
        for act in (lambda: store.commit(state_of("main", 9), step=9), lambda: store.delete(1)):
            with pytest.raises(StorageReadOnly, match="give catalog="):
                act()
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == there
    with pytest.raises(CatalogError, match="read_only=True"):
        ckptstore.open(place)


@pytest.mark.parametrize("n", [*range(1, 9), None])
def test_a_folder_is_read_without_the_catalog_that_a_killed_rebuild_left(place, monkeypatch, n):
    """None: one that had made nothing but an empty file."""
    before = contents(place)
    lose(place)
    if n is None:
        (place / "catalog.sqlite").touch()
    else:
        monkeypatch.setattr(documents, "open_catalog", lambda *args, **options: _failing(n, False, *args, **options))
        with pytest.raises(CatalogError, match="injected"):
            ckptstore.rebuild_catalog(place)
        monkeypatch.undo()
    left = files(place)
    assert contents(place, read_only=True) == before
    assert files(place) == left
    with pytest.raises(CatalogError, match=r"rebuild; to read without it, give read_only=True"):
        ckptstore.open(place)
    assert ckptstore.rebuild_catalog(place).commits == 5
    assert contents(place) == before


def test_a_folders_catalog_is_used_where_there_is_one(place, postgres, monkeypatch):
    (place / "catalog.sqlite").rename(place / "moved")
    ckptstore.rebuild_catalog(place, catalog=postgres)
    (place / "moved").rename(place / "catalog.sqlite")
    for catalog, tag in ((None, "here"), (postgres, "there")):
        with ckptstore.open(place, catalog=catalog) as store:
            store.tag(tag, 4)
        with ckptstore.open(place, catalog=catalog, read_only=True) as store:
            assert store.tags() == {tag: 4}
    monkeypatch.setattr(catalogs, "network_file_system", lambda _: "nfs4")
    with ckptstore.open(place, catalog=postgres, read_only=True) as store:
        assert store.tags() == {"there": 4}
    with ckptstore.open(place, read_only=True) as store:
        assert (store.steps(), store.tags()) == ([1, 2, 3, 4], {"here": 4, "there": 4})


def test_a_damaged_catalog_is_not_passed_over(place):
    lose(place)
    (place / "catalog.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(CatalogError, match="rebuild"):
        ckptstore.open(place, read_only=True)
    with pytest.raises(CatalogError, match="is not there"):
        ckptstore.open(place, read_only=True, catalog=f"sqlite:///{place}/mistyped.sqlite")


def test_an_empty_store_is_read_without_its_catalog(tmp_path):
    ckptstore.open(tmp_path / "empty").close()
    lose(tmp_path / "empty")
    with ckptstore.open(tmp_path / "empty", read_only=True) as store:
        assert (store.runs(), store.steps(), store.latest()) == ([], [], None)
    (tmp_path / "nothing").mkdir()
    for name in ("nothing", "missing"):
        with pytest.raises(NotAStore):
            ckptstore.open(tmp_path / name, read_only=True)


def test_an_encrypted_folder_is_read_without_its_catalog(tmp_path):
    (tmp_path / "key").write_text("a passphrase")
    settings = {"encrypt": True, "key_file": tmp_path / "key"}
    with ckptstore.open(tmp_path / "sealed", **settings) as store:
        store.commit(state_of("main", 1), step=1)
    lose(tmp_path / "sealed")
    with ckptstore.open(tmp_path / "sealed", read_only=True, **settings) as store:
        assert_exact(store, "main", 1)
    with pytest.raises(WrongKey):
        ckptstore.open(tmp_path / "sealed", read_only=True)


def test_what_is_left_out_is_reported_where_it_was_opened(place):
    with ckptstore.open(place) as store:
        document = Path(place, store.find(4).document)
    document.write_bytes(document.read_bytes()[:-20])
    lose(place)
    with pytest.warns(UserWarning, match=f"{document.name} is left out: .* cut short") as caught:
        store = ckptstore.open(place, read_only=True)
    assert caught[0].filename == __file__
    assert store.steps() == [1, 2, 3]


@pytest.mark.parametrize("change", [{"created": math.nan}, {"origin": document.Origin("a" * 32, math.inf)}])
def test_a_moment_that_never_was_is_reported(place, change):
    path = next((place / "manifests" / "main").glob("*3.*.manifest"))
    written = document.decode(path.read_bytes(), path.name)
    path.write_bytes(document.encode(msgspec.structs.replace(written, **change)))
    (place / "catalog.sqlite").unlink()
    (left,) = ckptstore.rebuild_catalog(place).left_out
    assert path.name in left.object and "it was created at" in left.reason


def test_documents_of_runs_with_capitals_lie_where_they_lay(place):
    """Earlier versions did not escape capitals."""
    with ckptstore.open(place, run="Exp-7") as store:
        store.commit(state_of("main", 1), step=1)
        [key] = [commit.document for commit in store.log()]
        assert key.startswith("manifests/%45%xp-7/")
    (place / "manifests/%45%xp-7").rename(place / "manifests/Exp-7")
    lose(place)
    assert not ckptstore.rebuild_catalog(place).left_out
    with ckptstore.open(place, run="Exp-7") as store:
        assert [commit.document for commit in store.log()] == [key.replace("%45%xp", "Exp")]
        store.commit(state_of("main", 2), step=2)
        assert store.verify().ok
        store.gc(ckptstore.KeepLast(1), grace=0)
        assert_same(store.checkout(2), state_of("main", 2))
