"""Repair mends what can be mended, keeps what cannot, and never makes it worse."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

import ckptstore
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import CorruptData, InvalidArgument, MissingData, StorageError
from ckptstore.operations.mending import packs as mend_packs
from ckptstore.operations.verifying import needs as check_needs
from ckptstore.store import Store
from ckptstore.testing.audit import CHUNK_BYTES, assert_nothing_leaked, assert_whole, files, site_of, state_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth

STEPS = 3


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = tmp_path_factory.mktemp("repair") / "store"
    with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
        for step in range(STEPS):
            store.commit(state_of("main", step), step=step)
    return place


def packs(place):
    """From the oldest on."""
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        return [(place / "packs" / pack.name[:2] / f"{pack.name}.pack", pack.state) for pack in catalog.packs()]


def oldest(place):
    return packs(place)[0][0]


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 8
    path.write_bytes(data)


def test_what_another_store_is_too_new_to_tell_is_lost_alone(place, tmp_path):
    other = shutil.copytree(place, tmp_path / "other")
    with closing(sqlite3.connect(other / "catalog.sqlite")) as database:
        database.execute("UPDATE chunks SET codec = 99 WHERE digest = (SELECT min(digest) FROM chunks)")
        database.commit()
    for path, _ in packs(place):
        path.unlink()
    with ckptstore.open(place) as store, ckptstore.open(other) as source:
        paths = len(store.manifest(0)) * STEPS
        assert 0 < len(store.repair(source).lost) < paths / 2


def test_a_whole_store_needs_no_repair(place):
    before = files(place)
    with site_of(place).open() as store:
        plan = store.plan_repair()
        assert (plan.packs, plan.saved, plan.documents, plan.lost) == ((), 0, (), ())
        assert store.repair() == ckptstore.RepairReport(0, 0, 0, 0, ())
    assert files(place) == before
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}


def test_a_plan_changes_nothing(place):
    flip(oldest(place), 2000)
    before = {name: (place / name).read_bytes() for name in files(place)}
    with site_of(place).open() as store:
        for _ in range(2):
            assert store.plan_repair().packs == (oldest(place).stem,)
    assert all((place / name).read_bytes() == data for name, data in before.items())
    assert files(place) == before.keys()


@pytest.mark.parametrize("position", [3, 70, -20, -100])
def test_damage_beside_the_payloads_loses_nothing(place, position):
    flip(oldest(place), position)
    with site_of(place).open() as store:
        assert not store.verify().ok
        plan = store.plan_repair()
        assert plan.packs == (oldest(place).stem,)
        if position != 70:  # the header of a frame
            assert plan.lost == ()
        report = plan.execute()
        assert (report.packs, report.lost) == (1, plan.lost)
        if not plan.lost:
            assert store.verify().ok
            assert_nothing_leaked(place)
            assert assert_whole(place) == {("main", step) for step in range(STEPS)}


def test_verify_looks_again_only_where_more_than_a_lost_chunk_is_wrong(place, monkeypatch):
    """Looking again takes a while for each commit, and a chunk may be lost for many."""
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        lost = store.repair().lost
        looked = []
        monkeypatch.setattr(check_needs, "_unheld", lambda *_: looked.append(_))
        problems = store.verify("catalog").problems
    assert {leaf for problem in problems for leaf in problem.affected} == set(lost)
    assert looked == []


def test_a_flipped_bit_loses_one_chunk(place):
    path = oldest(place)
    flip(path, 5000)
    with site_of(place).open() as store:
        plan = store.plan_repair()
        assert len({leaf.split()[1] for leaf in plan.lost}) == 1
        report = plan.execute()
        assert report.lost == plan.lost
        assert report.chunks == plan.saved > 0
        damaged = {leaf.split()[1] for leaf in report.lost}
        affected = {leaf for problem in store.verify().problems for leaf in problem.affected}
        assert affected == set(report.lost)
        for path_ in set(store.manifest(0)) - damaged:
            assert_same(store.read(0, path_), leaf_of(state_of("main", 0), path_))
        for path_ in damaged:
            with pytest.raises(MissingData, match=path_):
                store.read(0, path_)
        store.gc(grace=0)
        assert path.exists()
        assert store.plan_repair().lost == report.lost


def leaf_of(state, path):
    for key in path.split("/"):
        state = state[key]
    return state


def test_the_next_commit_of_the_same_chunks_heals(place):
    path = oldest(place)
    path.unlink()
    with site_of(place).open() as store:
        with pytest.raises(ckptstore.GcRefused):
            store.gc(grace=0)
        lost = store.repair().lost
        assert {leaf.split("@")[1].split()[0] for leaf in lost} == {"0", "1", "2"}
        with pytest.raises(CorruptData):
            store.checkout(0)
        store.commit(state_of("main", 0), step=10)
        assert store.verify().ok
        for step in range(STEPS):
            assert_same(store.checkout(step), state_of("main", step))
        store.delete(10)
        store.gc(grace=0)
    assert packs(place)[0][0] != path
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_the_same_commit_again_heals(place):
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        lost = {leaf.split()[0] for leaf in store.repair().lost}
        assert "main@0" in lost
        with pytest.raises(ckptstore.StepExists, match="another state"):
            store.commit(state_of("main", 1), step=0)
        before = store.find(0)
        assert store.commit(state_of("main", 0), step=0) == before
        assert store.verify().ok
        store.gc(grace=0)
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_a_bad_pack_is_not_relied_on_any_more(place):
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        store.repair()
        store.commit(state_of("main", 0), step=11)
        assert_same(store.checkout(11), state_of("main", 0))
        assert store.verify().ok
    assert_nothing_leaked(place)


def test_good_copies_come_from_another_store(place, template):
    for path, _ in packs(place):
        path.unlink()
    for path in (place / "manifests").rglob("*.manifest"):
        path.unlink()
    with ckptstore.open(template) as backup, site_of(place).open() as store:
        assert store.plan_repair().lost
        plan = store.plan_repair(backup)
        assert plan.lost == ()
        assert plan.documents == tuple(f"main@{step}" for step in range(STEPS))
        report = plan.execute()
        assert (report.packs, report.documents, report.lost) == (STEPS, STEPS, ())
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_another_store_helps_later_too(place, template):
    for path, _ in packs(place):
        path.unlink()
    with site_of(place).open() as store:
        assert store.repair().lost
        with ckptstore.open(template) as backup:
            assert store.repair(backup).lost == ()
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_a_file_that_is_brought_back_helps(place):
    path = oldest(place)
    kept = path.read_bytes()
    path.unlink()
    with site_of(place).open() as store:
        assert store.repair().lost
        path.write_bytes(kept)
        report = store.repair()
        assert report.lost == ()
        assert report.chunks > 0
    assert_nothing_leaked(place)
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}


def test_a_store_of_another_digest_cannot_help(place, tmp_path):
    with (
        ckptstore.open(tmp_path / "other", digest="sha256") as other,
        site_of(place).open() as store,
        pytest.raises(InvalidArgument, match=r"uses sha256.* repair without it, and push"),
    ):
        store.repair(other)


def test_documents_and_the_catalog_mend_each_other(place):
    one, two, three = sorted((place / "manifests").rglob("*.manifest"))
    one.unlink()
    flip(two, 60)
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        catalog.replace_manifest(catalog.find("main", 2).id, b"nonsense")
    with site_of(place).open() as store:
        plan = store.plan_repair()
        assert plan.documents == ("main@0", "main@1", "main@2")
        assert (plan.packs, plan.lost) == ((), ())
        assert plan.execute().documents == 3
    assert three.exists()
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}


def test_a_commit_whose_manifests_are_both_gone_is_reported(place):
    next((place / "manifests").rglob("*0.*.manifest")).unlink()
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        catalog.replace_manifest(catalog.find("main", 0).id, b"nonsense")
    with site_of(place).open() as store:
        plan = store.plan_repair()
        assert (plan.documents, plan.lost) == ((), ("main@0",))
        report = plan.execute()
        assert (report.documents, report.lost) == (0, ("main@0",))
        for step in (1, 2):
            assert_same(store.checkout(step), state_of("main", step))


def test_chunks_of_a_commit_that_nobody_can_read_are_kept_for_later(place, template):
    document = next((place / "manifests").rglob("*0.*.manifest"))
    document.unlink()
    with closing(open_catalog(f"sqlite:///{place}/catalog.sqlite", create=False)) as catalog:
        catalog.replace_manifest(catalog.find("main", 0).id, b"nonsense")
    for path, _ in packs(place):
        flip(path, -20)
    with site_of(place).open() as store:
        assert store.repair().lost == ("main@0",)
        store.gc(grace=0)
        shutil.copy(template / document.relative_to(place), document)
        assert store.repair().lost == ()
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_what_another_repair_brings_back_meanwhile_is_not_lost(place, template, monkeypatch):
    flip(oldest(place), 5000)
    original = mend_packs._store

    def repaired_meanwhile(*args):
        monkeypatch.undo()
        with site_of(place).open() as store, ckptstore.open(template) as backup:
            assert store.repair(backup).lost == ()
        return original(*args)

    with site_of(place).open() as store:
        plan = store.plan_repair()
        assert plan.lost
        monkeypatch.setattr(mend_packs, "_store", repaired_meanwhile)
        assert plan.execute().lost == ()
        store.gc(grace=0)
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_salvage_after_any_damage(place, template):
    """Random damage of any kind: what is not lost is exact, and a backup brings all of it back."""
    chance = random.Random(0)
    for attempt in range(12):
        here = shutil.copytree(template, place.parent / str(attempt))
        for path, _ in packs(here):
            damage(path, chance)
        with ckptstore.open(here) as store:
            lost = set(store.repair().lost)
            for step in range(STEPS):
                for leaf in store.manifest(step):
                    if f"main@{step} {leaf}" not in lost:
                        assert_same(store.read(step, leaf), leaf_of(state_of("main", step), leaf))
            with ckptstore.open(template) as backup:
                assert store.repair(backup).lost == ()
        assert assert_whole(here) == {("main", step) for step in range(STEPS)}
        assert_nothing_leaked(here)


def damage(path, chance):
    data = bytearray(path.read_bytes())
    kind = chance.choice(["cut", "bits", "hole", "shift", "none", "gone"])
    at = chance.randrange(len(data))
    if kind == "gone":
        path.unlink()
        return
    if kind == "cut":
        del data[at:]
    elif kind == "bits":
        for _ in range(5):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "hole":
        data[at : at + 3000] = bytes(len(data[at : at + 3000]))
    elif kind == "shift":
        data[at:at] = chance.randbytes(100)
    path.write_bytes(data)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", range(1, 14))
def test_an_interrupted_repair_is_begun_again(place, template, n, after):
    for path, _ in packs(place)[:2]:
        flip(path, 5000)
    next((place / "manifests").rglob("*.manifest")).unlink()
    parts = site_of(place).parts()
    failing = FailNth(parts.storage, n, after=after)
    with ckptstore.open(template) as backup:
        with Store(replace(parts, storage=failing), "main") as store:
            try:
                store.repair(backup)
            except StorageError:
                assert failing.failed
        with site_of(place).open() as store:
            assert store.repair(backup).lost == ()
    assert assert_whole(place) == {("main", step) for step in range(STEPS)}
    assert_nothing_leaked(place)


def test_a_commit_made_meanwhile_with_a_damaged_pack(place):
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        plan = store.plan_repair()
        store.commit(state_of("main", 0), step=10)
        plan.execute()
        assert "main@10" in {leaf.split()[0] for leaf in store.plan_repair().lost}


def test_a_plan_that_is_executed_late_brings_no_pack_back(place):
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        plan = store.plan_repair()
        for step in range(STEPS):
            store.delete(step)
        store.gc(grace=0)
        plan.execute()
    assert packs(place) == []
    assert_nothing_leaked(place)


def test_large_stores_keep_their_chunks_apart(tmp_path):
    with site_of(tmp_path / "store").open(chunk_bytes=1 << 20) as store:
        state = {f"block {number}": torch.rand(1 << 18) for number in range(70)}
        store.commit(state, step=0)
        for path, _ in packs(tmp_path / "store"):
            flip(path, -20)
        assert store.repair().lost == ()
        assert_same(store.checkout(0), state)


def test_a_chunk_of_one_large_element_is_found_when_its_pack_is_back(tmp_path):
    state = {"records": np.frombuffer(bytes(range(250)) * 80, dtype="V10000").copy()}
    place = tmp_path / "store"
    with site_of(place).open(chunk_bytes=4096) as store:
        store.commit(state, step=0)
        shutil.copytree(place / "packs", tmp_path / "backup")
        oldest(place).unlink()
        assert store.repair().lost == ("main@0 records",)
        shutil.copytree(tmp_path / "backup", place / "packs", dirs_exist_ok=True)
        assert store.repair().lost == ()
        assert_same(store.checkout(0), state)


# what is left of a damaged commit


def test_a_damaged_commit_is_checked_out_in_part(place):
    flip(oldest(place), 5000)
    with site_of(place).open() as store:
        with pytest.raises(CorruptData):
            store.checkout(0)
        with pytest.warns(UserWarning, match=r"main@0.*1 leaf.*model/frozen"):
            state = store.checkout(0, skip_damaged=True)
        expected = state_of("main", 0)
        del expected["model"]["frozen"]
        assert_same(state, expected)
        assert state["tied"] is state["model"]["own"]
        with pytest.warns(UserWarning, match="model/frozen"):
            assert set(store.checkout(0, paths="model", skip_damaged=True)["model"]) == {"slow", "own", "drift"}
        assert_same(store.checkout(0, paths="text", skip_damaged=True), {"text": expected["text"]})


def test_what_is_whole_is_checked_out_without_a_warning(place):
    with site_of(place).open() as store:
        assert_same(store.checkout(0, skip_damaged=True), state_of("main", 0))


def test_nothing_but_values_is_left_when_every_pack_is_gone(place):
    for path, _ in packs(place):
        path.unlink()
    with site_of(place).open() as store, pytest.warns(UserWarning, match="6 leaves"):
        state = store.checkout(0, skip_damaged=True)
    assert_same(state, {"small": torch.tensor([0.0]), "step": 0})


def test_nothing_is_left_at_all(tmp_path):
    with site_of(tmp_path / "store").open() as store:
        store.commit({"x": torch.arange(100)}, step=0)
        oldest(tmp_path / "store").unlink()
        with pytest.raises(MissingData, match="x: "):
            store.checkout(0, skip_damaged=True)


def test_live_objects_are_not_filled_in_part(place):
    with site_of(place).open() as store, pytest.raises(InvalidArgument, match="paths="):
        store.checkout(0, into=state_of("main", 0), skip_damaged=True)
