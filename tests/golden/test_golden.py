"""Stores that were written once stay readable for ever. Nothing here may be loosened, and no golden file changed."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.catalog import schema
from ckptstore.format import packs
from ckptstore.opening import migrate_catalog
from ckptstore.testing.audit import assert_nothing_leaked
from ckptstore.testing.equality import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors

HERE = Path(__file__).parent
STATES = runpy.run_path(str(HERE / "make.py"))["STATES"]
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


@pytest.mark.parametrize("digest", DIGESTS)
def test_what_is_covered(digest):
    folder = HERE / "format1" / digest
    codecs, digest_sizes = set(), set()
    for path in folder.glob("packs/*/*.pack"):
        whole = path.read_bytes()
        tail = whole[-packs.TAIL_BYTES :]
        offset, length = packs.footer_range(tail, len(whole), path.stem)
        for frame in packs.read_footer(whole[offset : offset + length], tail, path.stem):
            codecs.add(frame.codec)
            digest_sizes.add(len(frame.digest))
    assert codecs == {0, 1}
    assert digest_sizes == {16 if digest == "xxh3_128" else 32}
    assert len(list(folder.glob("manifests/*/*.manifest"))) == len(STATES)


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
