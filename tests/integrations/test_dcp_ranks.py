"""Saves and loads of several processes."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import _create_read_item_for_byteio
from torch.distributed.checkpoint.state_dict_loader import load

import ckptstore
from ckptstore.integrations.dcp import StoreReader
from ckptstore.testing.audit import assert_nothing_leaked
from tests.integrations.rank_child import tensors

JOBS = [
    ("plain", 1),
    ("plain", 4),
    ("rows", 2),
    ("rows", 3),
    ("rows", 4),
    ("columns", 2),
    ("columns", 4),
    ("replicated", 2),
    ("grid", 4),
    ("rows twice", 4),
    ("replicated rows", 4),
]
"""Layout and count of ranks."""


def assert_same(found, seed):
    wanted = tensors(seed)
    assert found.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not tensor.equal(found[name])] == []


@pytest.mark.parametrize(("layout", "count"), JOBS)
def test_every_layout_is_loaded_into_every_other(crew, store, layout, count):
    crew.do("save", count, place=store.url, step=7, layout=layout, seed=count)
    for other, ranks in JOBS:
        assert crew.do("load", ranks, place=store.url, step=7, layout=other, seed=count) == [[]] * ranks, (other, ranks)
    assert_same(store.checkout(7)["model"], count)
    assert store.verify().problems == ()


def test_the_same_weights_are_stored_once_whoever_saves_them(crew, store):
    for step, (layout, count) in enumerate(JOBS):
        crew.do("save", count, place=store.url, step=step, layout=layout, same=False)
    first, *others = (store.find(step) for step in store.steps())
    assert {commit.content for commit in others} == {first.content}
    assert all(commit.new_bytes <= first.new_bytes / 10 for commit in others)
    assert store.stats().packs == {"live": 1}


def test_a_commit_and_a_save_share_chunks(crew, store):
    store.commit({"model": tensors(3)}, step=1)
    crew.do("save", 4, place=store.url, step=2, layout="columns", seed=3)
    assert store.stats().packs == {"live": 1}
    assert crew.do("load", 2, place=store.url, step=2, seed=3, planner=True) == [[], []]


def test_chunks_that_several_ranks_have_are_written_by_one(crew, store):
    crew.do("save", 4, place=store.url, step=1, layout="rows")
    assert store.stats().chunks == len({chunk for pack in held(store) for chunk in pack})
    assert sum(map(len, held(store))) == store.stats().chunks


def test_only_the_first_rank_uses_the_catalog(crew, store):
    crew.do("save_with_one_catalog", 4, place=store.url, step=1)
    assert_same(store.checkout(1)["model"], 1)


def held(store):
    catalog = store._parts.catalog
    return [[chunk.digest for chunk in catalog.pack_chunks(pack.name)] for pack in catalog.packs()]


def test_what_ranks_saved_is_a_commit_like_any_other(crew, store):
    for step, layout in enumerate(["rows", "columns"], 1):
        crew.do("save", 4, place=store.url, step=step, layout=layout, seed=step, metadata={"loss": 0.5})
    wanted = tensors(2)["weight"]
    assert store.read(2, "model/weight", index=(slice(10, 200), 3)).equal(wanted[10:200, 3])
    changed = {change.path for change in store.diff(1, 2).changes}
    assert changed == {f"model/{name}" for name in tensors(1)} - {"model/empty"} | {"step"}
    assert store.find(2).metadata == {"loss": 0.5}
    assert store.find(2).parent_ref == "main@1"
    store.delete(1)
    store.gc(grace=0)
    assert_same(store.checkout(2)["model"], 2)
    assert store.verify().problems == ()


def test_one_process_without_a_group_loads_what_ranks_saved(crew, store):
    crew.do("save", 3, place=store.url, step=1, layout="rows", seed=1)
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in tensors(1).items()}}
    load(state, storage_reader=StoreReader(store, step=1), no_dist=True)
    assert_same(state["model"], 1)


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
def test_saves_go_on_in_the_background(crew, store, kind):
    crew.do("save_in_background", 2, place=store.url, step=5, kind=kind)
    assert_same(store.checkout(5)["model"], 5)
    assert crew.do("load", 4, place=store.url, step=5, seed=5) == [[]] * 4


def test_plans_are_cached(crew, store):
    crew.do("save_with_cached_plans", 2, place=store.url, steps=3)
    for step in range(3):
        assert_same(store.checkout(step)["model"], step)


def test_ranks_have_values_of_their_own(crew, store):
    found = crew.do("save_own_values", 4, place=store.url, step=1)
    assert found == [[True, {f"rng {rank}": f"rng {rank}"}] for rank in range(4)]
    assert store.checkout(1)["names"] == {f"rng {rank}": f"rng {rank}" for rank in range(4)}


def test_what_ranks_committed_each_for_itself_is_loaded(crew, store):
    crew.do("commit_with_own", 2, place=store.url, step=1)
    assert crew.do("load_own", 2, place=store.url, step=1) == [[0, 0.0], [1, 40.0]]
    assert crew.do("load_own", 2, place=store.url, step=1, asked=1) == [[1, 40.0]] * 2
    assert crew.do("load_own", 1, place=store.url, step=1) == [[0, 0.0]]
    assert crew.do("load_own", 4, place=store.url, step=1, asked=1) == [[1, 40.0]] * 4
    tracebacks = [answer["traceback"] for answer in crew.ask("load_own", 3, place=store.url, step=1)]
    assert all("Missing key in checkpoint state_dict: progress." in each for each in tracebacks)


def test_whose_own_is_loaded_must_be_told(crew, store):
    crew.do("commit_with_own", 2, place=store.url, step=1)
    reader = StoreReader(store, step=1)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=False, rank=1)
    names = ("progress.seen", "1.progress.seen", "model.w")
    own, by_number, common = (
        LoadPlan([_create_read_item_for_byteio(MetadataIndex(name), 0, MetadataIndex(name), 0, 0)]) for name in names
    )
    with pytest.raises(ckptstore.InvalidArgument, match=r"process_group=.*0\.progress\.seen"):
        reader.prepare_local_plan(own)
    for plan in (by_number, common):
        reader.prepare_local_plan(plan)


def test_ranks_save_to_servers(crew, s3, postgres):
    options = {"catalog": postgres, "storage_options": s3.options}
    with ckptstore.open(s3.url, **options, chunk_bytes=4096) as store:
        crew.do("save", 4, place=s3.url, step=1, layout="columns", seed=1, **options)
        crew.do("save", 2, place=s3.url, step=2, layout="rows", seed=1, **options)
        assert_same(store.checkout(2)["model"], 1)
        assert store.find(2).new_bytes < store.find(1).new_bytes / 10
        assert crew.do("load", 3, place=s3.url, step=1, seed=1, **options) == [[]] * 3
        assert store.verify().problems == ()


@pytest.mark.parametrize(("layout", "count"), [("rows", 1), ("rows", 2), ("columns", 4)])
def test_ranks_store_what_changed(crew, tmp_path, layout, count):
    for compression in ("best", "fast"):
        place = str(tmp_path / compression)
        ckptstore.open(place, chunk_bytes=1 << 14).close()  # codecs leave smaller ones alone
        for step in (1, 2):
            crew.do("save", count, place=place, step=step, layout=layout, seed=step, compression=compression)
    with ckptstore.open(tmp_path / "best") as best, ckptstore.open(tmp_path / "fast") as fast:
        assert best.find(2).new_bytes < 0.7 * fast.find(2).new_bytes
        best.delete(1)
        best.gc(grace=0)
        assert_same(best.checkout(2)["model"], 2)
        assert best.verify().problems == ()
    assert_nothing_leaked(tmp_path / "best")


def test_fsdp_goes_on_with_another_number_of_ranks(crew, store):
    (straight, *_) = crew.do("train", 1, place=store.url, first=0, last=6)
    ends = store.checkout(6)["model"]
    store.delete(6)
    losses: list[float] = []
    for count, first, last in [(4, 0, 2), (2, 2, 4), (3, 4, 6)]:
        losses += crew.do("train", count, place=store.url, first=first, last=last)[0]
    assert losses == pytest.approx(straight)
    found = store.checkout(6)["model"]
    assert all(torch.allclose(tensor, ends[name]) for name, tensor in found.items())
    assert found["0.weight"].shape == (50, 37)
