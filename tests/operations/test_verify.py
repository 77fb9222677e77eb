"""How deep verification looks, at which share of the packs, and where it goes on."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

import ckptstore
from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.catalog.opening import open_catalog
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import InvalidArgument, NotAStore, StorageError, StorageUnavailable
from ckptstore.opening import open_parts
from ckptstore.operations.verifying.verify import Level, Scope, verify
from ckptstore.storage.local import LocalStorage
from ckptstore.store import Store
from ckptstore.testing.audit import drifting, site_of
from ckptstore.testing.faults import Meanwhile, Recording

STEPS = 12


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "store"
    with ckptstore.open(place, chunk_bytes=4096) as store:
        for step in range(STEPS):
            store.commit({"x": torch.arange(3000) + step * 10_000}, step=step)
    return place


def packs(place):
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        return {pack.name: pack.verified for pack in catalog.packs()}


def alter(place, change):
    with closing(sqlite3.connect(place / "catalog.sqlite")) as database:
        database.execute(change)
        database.commit()


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def a_payload(place):
    """Neither its size nor its footer shows it."""
    flip(next(place.glob("packs/*/*.pack")), 200)


def a_footer(place):
    flip(next(place.glob("packs/*/*.pack")), -60)


def a_document(place):
    flip(next(place.glob("manifests/*/*")), 60)


def a_size(place):
    path = next(place.glob("packs/*/*.pack"))
    path.write_bytes(path.read_bytes() + b"\0")


def a_pack(place):
    next(place.glob("packs/*/*.pack")).unlink()


def a_missing_document(place):
    next(place.glob("manifests/*/*")).unlink()


def a_location(place):
    alter(place, "UPDATE chunks SET raw_length = raw_length + 1")


def a_need(place):
    alter(place, "DELETE FROM commit_packs WHERE [commit] = 2")


def an_edge(place):
    alter(place, "UPDATE packs SET state = 'condemned'")


DAMAGE = {
    a_payload: "data",
    a_footer: "footers",
    a_document: "footers",
    a_location: "footers",
    a_size: "sizes",
    a_pack: "sizes",
    a_missing_document: "sizes",
    an_edge: "catalog",
    a_need: "catalog",
}
LEVELS: list[Any] = ["catalog", "sizes", "footers", "data"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_level_finds_what_it_says(place, damage):
    with ckptstore.open(place) as store:
        assert all(store.verify(level).ok for level in LEVELS)
    damage(place)
    with ckptstore.open(place) as store:
        found = [level for level in LEVELS if not store.verify(level).ok]
    assert found == LEVELS[LEVELS.index(DAMAGE[damage]) :]


def test_a_pack_that_a_commit_needs_only_for_what_others_rest_on(tmp_path):
    place = tmp_path / "store"
    with site_of(place).open() as store:
        for step in range(2):
            store.commit({"x": drifting(f"main@{step}")}, step=step)
        assert store.verify("catalog").ok
        assert len(store._parts.catalog.packs(store.find(1).id)) == 2
        alter(place, "DELETE FROM commit_packs WHERE [commit] = 2 AND pack = 1")
        (problem,) = store.verify("catalog").problems
        assert (problem.object, problem.affected) == ("catalog", ("main@1",))
        assert "main@1 is not known to need the packs of 1 of its chunks" in problem.detail
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    ckptstore.rebuild_catalog(place)
    with ckptstore.open(place) as store:
        assert store.verify().ok


def test_what_gc_moves_meanwhile_is_known_to_be_needed(tmp_path, monkeypatch):
    place, pack_chunks = tmp_path / "store", SqlCatalog.pack_chunks
    with ckptstore.open(place, chunk_bytes=4096) as store:
        whole = {name: torch.randn(3000) for name in "abc"}
        store.commit(whole, step=0)
        store.commit({"a": whole["a"]}, step=1)
        store.delete(0)
        store.gc(grace=0)
        moved = []

        def moving(self, pack):
            monkeypatch.undo()
            moved.append(store.gc(grace=0).rewritten)
            return pack_chunks(self, pack)

        monkeypatch.setattr(SqlCatalog, "pack_chunks", moving)
        assert store.verify("catalog").ok
        assert moved == [1]


def recorded(place):
    parts = open_parts(
        place, catalog=None, create=False, read_only=False, digest="xxh3_128", chunk_bytes=4096, storage_options=None
    )
    recording = Recording(parts.storage)
    return recording, Store(ChunkStore(recording, parts.catalog, parts.config), "main")


def test_what_each_level_reads(place):
    whole = sum(path.stat().st_size for path in place.glob("packs/*/*.pack"))
    read = {}
    for level in LEVELS:
        recording, store = recorded(place)
        with store:
            assert store.verify(level).ok
        read[level] = recording.read
        assert (level == "catalog") == (not recording.operations)
    assert read["catalog"] == 0
    assert read["sizes"] == (place / "ckptstore.json").stat().st_size
    assert 0 < read["footers"] < whole <= read["data"]


def test_parts_are_the_whole(place):
    seen: list[str] = []
    with ckptstore.open(place) as store:
        for part in range(1, 5):
            before = packs(place)
            report = store.verify(subset=(part, 4))
            fresh = [name for name, when in packs(place).items() if when != before[name]]
            assert report.packs == len(fresh)
            assert store.verify(subset=(part, 4)).packs == report.packs
            seen += fresh
    assert sorted(seen) == sorted(packs(place))


def test_the_longest_unverified_come_first_and_an_interrupted_one_goes_on(place):
    parts = open_parts(
        place, catalog=None, create=False, read_only=False, digest="xxh3_128", chunk_bytes=4096, storage_options=None
    )
    names = sorted(packs(place))
    parts.catalog.mark_verified(names[:5])
    calls: list[tuple[str, int, int]] = []
    with Store(parts, "main") as store:
        report = store.verify(older_than=3600, progress=lambda *about: calls.append(about))
        assert report.packs == STEPS - 5
        assert calls[-1][1] == calls[-1][2] == report.bytes
        assert all(packs(place).values())
        assert store.verify(older_than=3600).packs == 0
        assert store.verify(older_than=0).packs == STEPS
        assert store.verify("sizes", older_than=3600).packs == 0


def test_damaged_packs_are_not_recorded_as_good(place):
    a_payload(place)
    with ckptstore.open(place) as store:
        for _ in range(2):
            report = store.verify(older_than=3600)
            assert len({problem.object for problem in report.problems}) == 1
            assert list(packs(place).values()).count(None) == 1
        assert report.packs == 1


@pytest.mark.parametrize("error", [StorageUnavailable("it did not answer"), StorageError("403 Forbidden")])
@pytest.mark.parametrize("verb", ["get", "get_ranges"])
def test_what_cannot_be_read_now_is_no_damage(place, monkeypatch, verb, error):
    """Neither a pack nor a document: verification ends, and goes on later with what it had not found good."""
    level: Level = "footers" if verb == "get_ranges" else "data"
    original, seen = getattr(LocalStorage, verb), []

    def read(self, key, *rest):
        seen.append(key)
        if len(seen) == refused:
            raise error
        return original(self, key, *rest)

    with ckptstore.open(place) as store:
        monkeypatch.setattr(LocalStorage, verb, read)
        refused = STEPS // 2
        with pytest.raises(StorageError, match=str(error)):
            store.verify(level)
        refused += len(seen) + (STEPS if level == "data" else 0)
        with pytest.raises(StorageError, match=str(error)):
            store.verify(level)
        good = [name for name, verified in packs(place).items() if verified]
        assert bool(good) == (level == "data")
        report = store.verify(level, older_than=3600)
    assert report.ok and report.packs == STEPS - len(good)


def test_a_bad_sector_is_damage_of_that_object(place):
    """Reading this process's memory from its beginning on fails as a bad sector does."""
    victims = [next(place.glob("packs/*/*.pack")), next(place.glob("manifests/*/*"))]
    for victim in victims:
        victim.unlink()
        victim.symlink_to("/proc/self/mem")
    with ckptstore.open(place) as store:
        problems = [problem for problem in store.verify().problems if "Input/output error" in problem.detail]
        assert {problem.object for problem in problems} == {path.relative_to(place).as_posix() for path in victims}
        assert all(problem.affected for problem in problems)
        assert store.plan_repair().packs == (victims[0].stem,)


def test_shallow_levels_do_not_count_as_verified(place):
    with ckptstore.open(place) as store:
        for level in LEVELS[:-1]:
            store.verify(level)
    assert set(packs(place).values()) == {None}


def test_a_store_open_for_reading_is_verified(place):
    with ckptstore.open(place, read_only=True) as store:
        assert store.verify().ok
    assert set(packs(place).values()) == {None}


def test_a_catalog_that_is_older_than_the_storage(place, tmp_path):
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with ckptstore.open(place) as store:
        store.commit({"x": 1}, step=STEPS)
        document = store.find(STEPS).document
        assert store.verify().ok
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    shutil.copy(tmp_path / "older.sqlite", place / "catalog.sqlite")
    with ckptstore.open(place) as store:
        for level in ("sizes", "footers", "data"):
            (problem,) = store.verify(level=level).problems
            assert problem.object == document
            assert "the catalog does not know: the catalog is older than the storage: rebuild it" in problem.detail
        assert store.verify(level="catalog").ok


def test_what_gc_took_and_another_commit_stored_anew_meanwhile_is_no_damage(place, monkeypatch):
    with ckptstore.open(place) as store, ckptstore.open(place) as other:
        catalog = type(store._parts.catalog)
        locate = catalog.locate
        state = store.checkout(0)

        def taken(self, digests):
            monkeypatch.undo()
            other.delete(0)
            other.gc(grace=0)
            found = locate(self, digests)
            other.commit(state, step=STEPS)
            return found

        monkeypatch.setattr(catalog, "locate", taken)
        assert store.verify("catalog").ok
        assert other.steps() == [*range(1, STEPS), STEPS]


def test_what_cannot_be(place):
    wrong: list[dict[str, Any]] = [
        {"level": "deep"},
        {"subset": (0, 3)},
        {"subset": (4, 3)},
        {"subset": "3/20"},
        {"subset": (1, 2, 3)},
        {"subset": (1.0, 2)},
        {"older_than": "a day"},
        {"older_than": float("nan")},
        {"older_than": 10**400},
    ]
    with ckptstore.open(place) as store:
        for options in wrong:
            with pytest.raises(InvalidArgument, match=next(iter(options))):
                store.verify(**options)


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "another store"])
def test_a_store_that_was_moved_away_is_not_taken_for_damaged(place, tmp_path, postgres, there):
    """Its catalog is elsewhere, and would have to believe that all is lost."""
    shutil.copytree(place, tmp_path / "apart")
    (tmp_path / "apart" / "catalog.sqlite").unlink()
    ckptstore.rebuild_catalog(tmp_path / "apart", catalog=postgres)
    with ckptstore.open(tmp_path / "apart", catalog=postgres) as store:
        (tmp_path / "apart").rename(tmp_path / "moved")
        if there == "an empty folder":
            (tmp_path / "apart").mkdir()
        if there == "another store":
            ckptstore.open(tmp_path / "apart").close()
        for act in (store.verify, store.plan_repair, store.repair):
            with pytest.raises(NotAStore, match="apart does not hold the store any more that was opened"):
                act()
        assert store.verify(level="catalog").ok
    with ckptstore.open(tmp_path / "moved", catalog=postgres) as store:
        assert store.verify().ok


@pytest.mark.parametrize("level", ["sizes", "footers", "data"])
def test_a_store_that_is_moved_away_meanwhile_is_not_taken_for_damaged(place, tmp_path, postgres, level):
    apart = tmp_path / "apart"
    shutil.copytree(place, apart)
    (apart / "catalog.sqlite").unlink()
    ckptstore.rebuild_catalog(apart, catalog=postgres)
    with ckptstore.open(apart, catalog=postgres) as store:
        parts = store._parts
        moved = Meanwhile(parts.storage, "list", lambda: apart.rename(tmp_path / "moved"))
        with pytest.raises(NotAStore, match="does not hold the store any more"):
            verify(replace(parts, storage=moved), Scope(level))
        assert moved.happened
        (tmp_path / "moved").rename(apart)
        a_payload(apart)
        plan = store.plan_repair()
        apart.rename(tmp_path / "moved")
        with pytest.raises(NotAStore, match="does not hold the store any more"):
            plan.execute()
        (tmp_path / "moved").rename(apart)
        assert len({problem.object for problem in store.verify().problems}) == 1
