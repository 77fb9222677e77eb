"""What rests on what is damaged, and can be read all the same, is read after a repair too."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

import ckptstore
from ckptstore.chunkstore import deriving
from ckptstore.chunkstore.reliance import Reliance
from ckptstore.errors import CorruptData, StorageError
from ckptstore.format.packs import pack_key
from ckptstore.store import Store
from ckptstore.testing.audit import assert_held, site_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import MUTATING, VERBS, FailNth

STEPS = 4
TENSORS = ("m/weight", "o/state/0/exp_avg", "o/state/0/exp_avg_sq")


def reopened(place):
    return ckptstore.open(place, compression="best")


def frames(store):
    catalog = store._parts.catalog
    return [chunk for pack in catalog.packs() if pack.state == "live" for chunk in catalog.pack_chunks(pack.name)]


def chunk_of(store, step, path):
    digest = store.manifest(step)[path].chunks
    return next(frame for frame in frames(store) if frame.digest == digest)


def flip(place, frame, bits=1):
    """Of the lowest bits of a number in the middle, which a step of Adam may round away."""
    file = place / pack_key(frame.pack)
    data = bytearray(file.read_bytes())
    data[frame.offset + frame.length // 2] ^= bits
    file.write_bytes(data)


def readable(store):
    """Leaf → its bits, of all tensors that can be read."""
    found = {}
    for step in store.steps():
        for path in TENSORS:
            try:
                found[f"main@{step} {path}"] = store.read(step, path)
            except CorruptData:
                continue
    return found


def affected(store):
    return {leaf for problem in store.verify().problems for leaf in problem.affected}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Consecutive steps of AdamW; the weights of each rest on those before them and on its moments, as of old."""
    place = tmp_path_factory.mktemp("resting") / "store"
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.MonkeyPatch.context() as patch, reopened(place) as store:
        patch.setattr(Reliance, "bears", lambda *_: True)
        patch.setattr(deriving, "_was_computed", lambda _: False)
        patch.setattr(deriving, "differs_little", lambda *_: False)
        for step in range(STEPS):
            model.weight.grad = torch.randn_like(model.weight) * 1e-3
            optimizer.step()
            store.commit({"m": model, "o": optimizer}, step=step)
    return place


@pytest.fixture
def damaged(place):
    """A first moment is not what it was; the weights that rest on it come out right."""
    with reopened(place) as store:
        flip(place, chunk_of(store, 0, "o/state/0/exp_avg"))
    return place


def test_what_rests_on_a_damaged_chunk_is_as_readable_as_it_was(damaged):
    with reopened(damaged) as store:
        before = readable(store)
        assert "main@1 m/weight" in before
        assert "main@0 o/state/0/exp_avg" not in before
        lost = store.repair().lost
        assert set(lost).isdisjoint(before)
        assert_same(readable(store), before)
        assert affected(store) == set(lost)


@pytest.mark.parametrize("bits", [1, 255])
def test_repair_takes_nothing_wherever_a_byte_is_flipped(template, tmp_path, bits):
    with reopened(template) as store:
        lying, expected = frames(store), readable(store)
    assert any(len(frame.bases) > 1 for frame in lying)
    for number, frame in enumerate(lying):
        place = shutil.copytree(template, tmp_path / str(number))
        flip(place, frame, bits)
        with reopened(place) as store:
            before = readable(store)
            plan = store.plan_repair()
            report = plan.execute()
            assert (report.packs, report.lost) == (1, plan.lost)
            assert report.chunks == plan.saved
            assert_same(readable(store), before)
            assert set(report.lost) == expected.keys() - before.keys()
            assert affected(store) == set(report.lost)
            store.gc(grace=0)
            assert_same(readable(store), before)
        assert_held(place)


def test_one_repair_follows_a_chain_upwards_from_what_came_back(place, template):
    with reopened(template) as store:
        expected, moment = readable(store), store.read(1, "o/state/0/exp_avg")
    with reopened(place) as store:
        flip(place, chunk_of(store, 1, "o/state/0/exp_avg"), 255)
        assert "main@2 m/weight" in store.repair().lost
        store.commit({"moment": moment}, step=0, run="back")
        assert store.repair().lost == ()
        assert_same(readable(store), expected)
        assert store.verify().ok


def test_what_became_whole_outlives_what_it_rested_on(damaged):
    with reopened(damaged) as store:
        expected = store.read(1, "m/weight")
        store.repair()
        for step in (0, *range(2, STEPS)):
            store.delete(step)
        for _ in range(2):
            store.gc(grace=0)
            assert_same(store.read(1, "m/weight"), expected)
    assert_held(damaged)


@pytest.mark.parametrize("count", [2, 3])
def test_many_chunks_of_one_chain_are_damaged(place, count):
    with reopened(place) as store:
        for step in range(count):
            flip(place, chunk_of(store, step, "o/state/0/exp_avg"))
        before = readable(store)
        plan = store.plan_repair()
        assert plan.execute().lost == plan.lost
        assert_same(readable(store), before)
        assert affected(store) == set(plan.lost)
    assert_held(place)


def test_a_commit_that_nobody_can_read_keeps_what_rests_on_damage(damaged):
    with reopened(damaged) as store:
        expected = readable(store)
        for step in range(STEPS):
            store.delete(step)
        catalog, storage = store._parts.catalog, store._parts.storage
        kept = []
        for commit in catalog.commits(deleted=True):
            kept.append((commit, catalog.manifest(commit.id)))
            catalog.replace_manifest(commit.id, b"nonsense")
            storage.delete(commit.document)
        store.repair()
        for commit, document in kept:
            catalog.replace_manifest(commit.id, document)
            storage.put(commit.document, [document])
            store.restore(commit.step)
    with reopened(damaged) as store:
        store.repair()
        assert_same(readable(store), expected)
    assert_held(damaged)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("verbs", "n"), [*((MUTATING, n) for n in (1, 2)), *((VERBS, n) for n in range(1, 100, 14))])
def test_an_interrupted_repair_takes_nothing_either(damaged, verbs, n, after):
    with reopened(damaged) as store:
        before = readable(store)
    parts = site_of(damaged).parts()
    failing = FailNth(parts.storage, n, after=after, verbs=verbs)
    with Store(replace(parts, storage=failing), "main") as store:
        try:
            store.repair()
        except StorageError:
            assert failing.failed
    with reopened(damaged) as store:
        assert_same(readable(store), before)
        assert set(store.repair().lost).isdisjoint(before)
        assert_same(readable(store), before)
    assert_held(damaged)
