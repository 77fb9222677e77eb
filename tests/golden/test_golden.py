"""Stores that were written once stay readable for ever. Nothing here may be loosened, and no golden file changed."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.administering import migrate_catalog
from ckptstore.catalog import schema
from ckptstore.format import packs
from ckptstore.testing.audit import assert_nothing_leaked
from ckptstore.testing.equality import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors

HERE = Path(__file__).parent
MAKE = runpy.run_path(str(HERE / "make.py"))
STATES, MOVING, moving = MAKE["STATES"], MAKE["MOVING"], MAKE["moving"]
METADATA = {"loss": 0.5, "note": "né", "nested": {"list": [1, None, True]}}
DIGESTS = ("xxh3_128", "sha256", "blake3")


def copied(tmp_path, digest):
    return shutil.copytree(HERE / "format1" / digest, tmp_path / digest)


@pytest.fixture(params=DIGESTS)
def place(request, tmp_path):
    """A store whose catalog was made anew."""
    place = copied(tmp_path, request.param)
    (place / "catalog.sqlite").unlink(missing_ok=True)
    report = ckptstore.rebuild_catalog(place)
    assert (report.commits, report.packs, report.left_out) == (len(STATES), 3, ())
    return place


@pytest.mark.parametrize("address", STATES)
def test_every_step_is_exact(place, address):
    with ckptstore.open(place, create=False) as store:
        assert_same(store.checkout(address), STATES[address]())
        assert store.find(address).metadata == METADATA


def test_history(place):
    with ckptstore.open(place) as store:
        assert store.steps() == [1, 2, 3]
        assert {run.name: run.forked_from for run in store.runs()} == {"main": None, "side": "main@2"}
        assert [store.find(step).parent_ref for step in STATES] == [None, "main@1", "main@2", "main@2"]
        changes = {change.path for change in store.diff(1, 2).changes}
    assert changes == {"arrays/many chunks", "values/scalars"}


def test_nothing_is_damaged(place):
    with ckptstore.open(place) as store:
        report = store.verify()
    assert report.ok, report.problems
    assert (report.commits, report.packs) == (len(STATES), 3)


def test_parts_are_read_and_live_tensors_filled(place):
    expected = STATES["main@2"]()["arrays"]
    with ckptstore.open(place) as store:
        for index in (slice(1000, 2990), 2999):
            assert torch.equal(store.read(2, "arrays/many chunks", index=index), expected["many chunks"][index])
        assert torch.equal(store.read(2, "arrays/turned", index=(3, slice(9))), expected["turned"][3, :9])
        live = {"arrays": {"grid": torch.zeros(50, 40, dtype=torch.int32)}}
        store.checkout(2, into=live, strict=False)
        assert torch.equal(live["arrays"]["grid"], expected["grid"])


def test_it_goes_on(place):
    with ckptstore.open(place) as store:
        before = store.stats().stored_bytes
        store.commit(STATES["main@1"](), step=10)
        assert store.stats().stored_bytes == before  # chunks are cut and named as they were
        assert store.find(10).content == store.find(1).content
        store.gc(keep=ckptstore.KeepLast(1), grace=0)
        assert_same(store.checkout(10), STATES["main@1"]())
        assert_same(store.checkout("side@7"), STATES["side@7"]())
    assert_nothing_leaked(place)


def frames_of(folder):
    for path in folder.glob("packs/*/*.pack"):
        whole = path.read_bytes()
        tail = whole[-packs.TAIL_BYTES :]
        offset, length = packs.footer_range(tail, len(whole), path.stem)
        yield from packs.read_footer(whole[offset : offset + length], tail, path.stem)


@pytest.mark.parametrize("digest", DIGESTS)
def test_what_is_covered(digest):
    frames = list(frames_of(HERE / "format1" / digest))
    assert {frame.codec for frame in frames} == {0, 1}
    assert {len(frame.digest) for frame in frames} == {16 if digest == "xxh3_128" else 32}
    assert len(list((HERE / "format1" / digest).glob("manifests/*/*.manifest"))) == len(STATES)


# what rests on others


@pytest.fixture
def deltas(tmp_path):
    place = copied(tmp_path, "deltas")
    report = ckptstore.rebuild_catalog(place)
    assert (report.commits, report.packs, report.left_out) == (len(MOVING), 4, ())
    return place


def test_deltas_are_read(deltas):
    with ckptstore.open(deltas, create=False) as store:
        for address, step in MOVING.items():
            assert_same(store.checkout(address), moving(step))
        part = store.read(3, "numbers/torch.float32", index=slice(8190, 8200))
        assert torch.equal(part, moving(3)["numbers"]["torch.float32"][8190:8200])
        assert store.verify().ok


def test_deltas_go_on(deltas):
    with ckptstore.open(deltas, compression="best") as store:
        store.commit(moving(5), step=5)
        for step in (1, 2):
            store.delete(step)
        store.gc(grace=0)
        store.gc(grace=0)
        for address, step in {"main@3": 3, "main@5": 5, "side@7": 4}.items():
            assert_same(store.checkout(address), moving(step))
        assert store.verify().ok
    assert_nothing_leaked(deltas)


def test_what_deltas_cover():
    frames = list(frames_of(HERE / "format1" / "deltas"))
    assert {frame.codec for frame in frames} == {0, 1, 2, 3}
    assert {bool(frame.base) for frame in frames if frame.codec == 3} == {True}
    assert not any(frame.base for frame in frames if frame.codec != 3)


def test_a_catalog_of_schema_0001(tmp_path):
    place = copied(tmp_path, "xxh3_128")
    assert migrate_catalog(place) == ("0001", schema.HEAD)
    with ckptstore.open(place, create=False) as store:
        assert store.tags() == {"best": 1}
        assert {run.name: run.forked_from for run in store.runs()} == {"main": None, "side": "main@2"}
        for address, state in STATES.items():
            assert_same(store.checkout(address), state())
            assert store.find(address).metadata == METADATA
        assert store.verify().ok
        store.commit(STATES["main@2"](), step=8)
        store.gc(keep=ckptstore.KeepLast(1), grace=0)
        assert store.steps() == [1, 8]
        assert_same(store.checkout("best"), STATES["main@1"]())
    assert_nothing_leaked(place)
