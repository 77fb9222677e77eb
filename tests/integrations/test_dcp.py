"""DCP in one process, over a store."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import fractions
import io
import pathlib
import pickle
import re
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ckptstore
from ckptstore.integrations.dcp import StoreLoadPlanner, StoreReader, StoreSavePlanner, StoreWriter
from ckptstore.testing.audit import assert_nothing_leaked, drifting
from ckptstore.testing.equality import assert_same


class Opaque:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Opaque) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Record:
    weight: torch.Tensor
    deque: collections.deque[Any]


class Pair(NamedTuple):
    one: int
    other: Any


def save(state, store, step=1, planner=None, **options):
    return dcp_save(state, storage_writer=StoreWriter(store, step=step, **options), planner=planner)


def load(state: Any, store, step: Any = 1, planner=None, **options):
    dcp_load(state, storage_reader=StoreReader(store, step=step, **options), planner=planner)
    return state


def failure(call):
    """What DCP wrapped."""
    with pytest.raises(CheckpointException) as caught:
        call()
    (found,) = caught.value.failures.values()
    return found[0]


DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back(store, dtype):
    content = torch.arange(8000, dtype=torch.int16).view(torch.uint8)[: 256 * 3 * dtype.itemsize].clone()
    tensor = (content & 1 if dtype is torch.bool else content).view(dtype).view(256, 3)
    wanted = {"x": tensor, "turned": tensor.t(), "one": tensor[3, 1]}
    save(wanted, store)
    found = load({name: torch.zeros_like(tensor) for name, tensor in wanted.items()}, store)
    for name, tensor in wanted.items():
        assert raw(found[name]) == raw(tensor) == raw(store.checkout(1)[name])


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_training_state_goes_on(store):
    torch.manual_seed(0)
    model, other = (torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 2)) for _ in range(2))
    optimizer, theirs = (torch.optim.AdamW(each.parameters(), lr=rate) for each, rate in ((model, 0.1), (other, 0.2)))
    model(torch.ones(3, 30)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    save({"model": weights, "optim": moments}, store)
    weights, moments = get_state_dict(other, theirs)
    load({"model": weights, "optim": moments}, store)
    set_state_dict(other, theirs, model_state_dict=weights, optim_state_dict=moments)
    assert all(mine.equal(its) for mine, its in zip(model.parameters(), other.parameters(), strict=True))
    assert theirs.param_groups[0]["lr"] == 0.1
    assert store.read(1, "model/0.weight").equal(model[0].weight)


def test_a_part_is_loaded(store):
    save({"model": {"a": torch.ones(2000), "b": torch.ones(3)}, "step": 5}, store)
    assert load({"step": 0}, store) == {"step": 5}
    assert load({"model": {"b": torch.zeros(3)}}, store)["model"]["b"].sum() == 3


def test_a_state_is_built_from_nothing(store):
    state: Any = {"model": {"a.b": torch.arange(3000)}, "list": [{"lr": 0.1}, {"lr": 0.2}], "step": 5}
    save(state, store)
    found: dict = {}
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(found, storage_reader=StoreReader(store, step=1), planner=planner, no_dist=True)
    assert found["model"]["a.b"].equal(state["model"]["a.b"])
    assert (found["list"], found["step"]) == (state["list"], 5)


def test_commits_are_loaded(store):
    state: Any = {
        "model": {"w": torch.arange(3000.0)},
        "optim": {"state": {0: {"m": torch.ones(20)}}, "betas": (0.9, 0.99)},
    }
    record = store.commit(state, step=3)
    store.tag("best", 3)
    found: Any = {"model": {"w": torch.zeros(3000)}, "optim": {"state": {0: {"m": torch.zeros(20)}}, "betas": None}}
    for step in (3, "best", "latest", "main@3", record):
        assert load(found, store, step=step)["model"]["w"].equal(state["model"]["w"])
    assert found["optim"]["state"][0]["m"].equal(torch.ones(20))
    assert found["optim"]["betas"] == (0.9, 0.99)


def test_ranks_that_found_other_commits(store):
    readers = []
    for step in (1, 2):
        store.commit({"w": torch.full((3,), float(step))}, step=step)
        readers.append(StoreReader(store, step="latest"))
        readers[-1].read_metadata()
    plans = [reader.prepare_local_plan(LoadPlan([])) for reader in readers]
    with pytest.raises(ckptstore.InvalidArgument, match="latest"):
        readers[0].prepare_global_plan(plans)
    assert len(readers[0].prepare_global_plan(plans[:1] * 2)) == 2


def test_the_same_state_is_success_another_is_not(store):
    first = save({"x": torch.ones(3000)}, store)
    again = save({"x": torch.ones(3000)}, store.url)
    assert first.storage_meta.save_id == again.storage_meta.save_id == store.find(1).id
    assert isinstance(failure(lambda: save({"x": torch.zeros(3000)}, store)), ckptstore.StepExists)
    assert isinstance(failure(lambda: save({"x": torch.ones(3000), "y": 1}, store)), ckptstore.StepExists)
    store.gc(grace=0)
    assert store.stats().packs == {"live": 1}


@pytest.mark.parametrize("kind", [StoreWriter, StoreReader])
def test_a_misspelt_option_is_refused_at_once(tmp_path, kind):
    with pytest.raises(ckptstore.InvalidArgument, match=r"catalogue.*nearest: catalog"):
        kind(tmp_path / "ckpts", step=1, catalogue="sqlite:///x.sqlite")
    assert not (tmp_path / "ckpts").exists()


def test_a_checkpoint_id_is_a_step(store):
    writer, reader = StoreWriter(store, step=0), StoreReader(store)
    for step in (4, "5"):
        dcp_save({"step": int(step)}, storage_writer=writer, checkpoint_id=step)
    assert store.steps() == [4, 5]
    found = {"step": 0}
    dcp_load(found, storage_reader=reader, checkpoint_id=4)
    assert found == {"step": 4}
    with pytest.raises(ckptstore.InvalidArgument, match="give a step"):
        dcp_save({}, storage_writer=writer, checkpoint_id="folder/5")


def test_what_chunks_rest_on_stays(tmp_path):
    """A save finds chunks that rest on those of a commit which then goes."""
    with ckptstore.open(tmp_path / "store", compression="best") as store:
        for step in (1, 2):
            store.commit({"x": drifting(str(step))}, step=step)
        assert store.find(2).new_bytes < store.find(1).new_bytes / 2
        save({"x": drifting("2")}, store, step=3)
        store.delete(1)
        store.delete(2)
        store.gc(grace=0)
        assert raw(store.checkout(3)["x"]) == raw(drifting("2"))
    assert_nothing_leaked(tmp_path / "store")


# values


@pytest.mark.parametrize("planners", [(None, None), (StoreSavePlanner(), None), (None, StoreLoadPlanner())])
def test_plain_values_keep_their_types_without_pickles(store, planners):
    state: Any = {"a": (1, "b", None, 2.5), "b": [1, {2}], "c": b"x" * 5000, "d": torch.float16, "e": {"f": True}}
    save(state, store, planner=planners[0])
    found = load({"a": 0, "b": 0, "c": 0, "d": 0, "e": {"f": 0}}, store, planner=planners[1])
    assert found == store.checkout(1) == state


SHARED = torch.arange(40)
COMPOUND = [
    np.arange(3000),
    np.float64(3),
    ("MT19937", np.arange(624, dtype=np.uint32), 624, 0, 0.0),
    (torch.arange(3000.0).view(50, 60).t(), 1, {"lr": np.ones(2)}),
    (SHARED, [SHARED, torch.nn.Parameter(torch.ones(30))]),
    [np.arange(30), "text", (torch.ones(2), None)],
    collections.deque([1, torch.ones(20)], maxlen=5),
    Record(torch.ones(20), deque=collections.deque()),
    Pair(1, np.arange(30)),
    torch.eye(3).to_sparse(),
]
"""What DCP takes for one value, and a commit for several leaves."""


@pytest.mark.parametrize("value", COMPOUND[:-1], ids=lambda value: type(value).__name__)
def test_values_that_are_several_leaves(store, value):
    state: Any = {"a": {"v": value, "w": torch.ones(300)}, "n": 1}
    save(state, store, planner=StoreSavePlanner())
    assert_same(store.checkout(1), state)
    assert store.commit(state, step=1).id == store.find(1).id
    for planner in (StoreLoadPlanner(), None):
        found = load({"a": {"v": None, "w": torch.zeros(300)}, "n": 0}, store, planner=planner)
        assert_same(plain(found) if planner is None else found, plain(state) if planner is None else state)


def plain(state):
    """Without what a pickle of torch's loses."""
    return pickle.loads(pickle.dumps(state))


@pytest.mark.parametrize("value", COMPOUND, ids=lambda value: type(value).__name__)
def test_values_of_a_commit_that_are_several_leaves(store, value):
    store.commit({"a": {"v": value}, "b": [{"v": value}]}, step=1)
    target: Any = {"a": {"v": None}, "b": [{"v": None}]}
    found = load(target, store, planner=StoreLoadPlanner())
    for each in (found["a"], *found["b"]):
        assert_same(each["v"], value)
    state: Any = {}
    reader = StoreReader(store, step=1)
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert type(state["a"]["v"]) is type(state["b"][0]["v"]) is type(value)


def test_leaves_of_a_tuple_are_loaded_in_place_too(store):
    store.commit({"v": (torch.ones(300), 1)}, step=1)
    target = torch.zeros(300)
    assert load({"v": [target, 0]}, store)["v"] == [target, 1]
    assert target.equal(torch.ones(300))


def test_leaves_of_a_record_are_loaded_into_a_dict(store):
    """Where DCP's planner, of what it lacks, could believe all names to be those of torch 2.3."""
    store.commit({"v": Pair(1, 2), "w": {"lr": 0.1}}, step=1)
    assert load({"v": {"one": 0, "other": 0}, "w": {"lr": 0}}, store) == {"v": {"one": 1, "other": 2}, "w": {"lr": 0.1}}


EMPTY = [b"", [b"", 1], np.zeros((0, 3)), np.str_("")]
"""Torch pickles these by a call of `bytes`."""


@pytest.mark.parametrize(
    "value",
    [
        *(COMPOUND[0], *COMPOUND[2:6], *EMPTY),
        *(np.float64(3), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), pathlib.Path("x")),
    ],
)
def test_values_of_known_types_come_from_planners_of_dcp(store, value):
    save({"v": value}, store)
    assert_same(store.checkout(1), {"v": plain(value)})
    assert_same(load({"v": None}, store), {"v": plain(value)})


def test_what_the_process_allowed_stays_allowed(store):
    allowed: list[Any] = [np.ndarray, fractions.Fraction]
    with torch.serialization.safe_globals(allowed):
        save({"v": np.arange(3), "w": fractions.Fraction(1, 2)}, store)
        assert set(torch.serialization.get_safe_globals()) >= set(allowed)
    assert store.checkout(1)["w"] == fractions.Fraction(1, 2)


class Counting:
    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        raise AssertionError


def test_what_is_no_value(store):
    """What would not come back where DCP looks for it."""
    unflat = StoreSavePlanner(flatten_state_dict=False)
    for value, planner, advice in [
        ((1, Counting()), StoreSavePlanner(), r"give its state_dict\(\)"),
        (Counting(), StoreSavePlanner(), r"give its state_dict\(\)"),
        ({"w": torch.ones(3)}, unflat, "flatten_state_dict=False"),
        ({"w": torch.ones(3)}, DefaultSavePlanner(flatten_state_dict=False), "flatten_state_dict=False"),
        ([1, torch.ones(3)], unflat, "flatten_state_dict=False"),
        ((1, Opaque(3)), StoreSavePlanner(), "'d/v/1': .*Opaque.*allow_pickle=True"),
        (collections.deque(), None, "collections.deque.*StoreSavePlanner.*, or"),
    ]:
        flat = planner is None or planner.flatten_state_dict
        state: Any = {"d": {"v": value}} if flat else {"v": value}
        refused = failure(lambda state=state, planner=planner: save(state, store, planner=planner))
        assert isinstance(refused, ckptstore.UnsupportedLeaf)
        assert re.search(advice, str(refused))
        assert store.steps() == []
    save({"d": {"v": (1, Opaque(3))}}, store, planner=StoreSavePlanner(), allow_pickle=True)
    assert load({"d": {"v": None}}, store, allow_pickle=True) == {"d": {"v": (1, Opaque(3))}}


def test_our_planners_know_more_types(store):
    state: Any = {"when": dt.date(2020, 1, 1), "share": fractions.Fraction(1, 3), "where": pathlib.Path("x")}
    save(state, store, planner=StoreSavePlanner())
    assert load(dict.fromkeys(state), store, planner=StoreLoadPlanner()) == state
    refused = failure(lambda: save(state, store, step=2))
    assert isinstance(refused, ckptstore.UnsupportedLeaf)
    assert "'share'" in str(refused)
    assert "StoreSavePlanner" in str(refused)


@pytest.mark.parametrize("planner", [None, StoreSavePlanner()])
def test_pickles_are_asked_for_twice(store, planner):
    state: Any = {"odd": Opaque(3)}
    assert isinstance(failure(lambda: save(state, store, planner=planner)), ckptstore.UnsupportedLeaf)
    save(state, store, planner=planner, allow_pickle=True)
    assert isinstance(failure(lambda: load({"odd": 0}, store)), ckptstore.PickleRefused)
    assert load({"odd": 0}, store, allow_pickle=True) == state


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize("saver", ["commit", None, StoreSavePlanner()])
def test_streams_of_bytes_are_values(store, saver, allow_pickle):
    state: Any = {"losses": io.BytesIO(b"any bytes"), "both": (1, io.BytesIO(b"others"))}
    if saver == "commit":
        store.commit(state, step=1)
    else:
        save(state, store, planner=saver, allow_pickle=allow_pickle)
    for planner in (None, StoreLoadPlanner()):
        found = load({"losses": io.BytesIO(), "both": None}, store, planner=planner, allow_pickle=allow_pickle)
        assert (found["losses"].read(), found["both"][1].read()) == (b"any bytes", b"others")


def test_what_a_planner_made_of_a_value_is_kept_as_bytes(store):
    class Own(DefaultSavePlanner):
        def transform_object(self, write_item, value):
            return io.BytesIO(b"own form") if value == 7 else super().transform_object(write_item, value)

    save({"x": 7}, store, planner=Own(), allow_pickle=True)
    assert store.checkout(1, allow_pickle=True)["x"].getvalue() == b"own form"


# errors


def test_keys_that_are_one_once_flattened(store):
    state: Any = {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}
    refused = failure(lambda: save(state, store, planner=StoreSavePlanner()))
    assert isinstance(refused, ckptstore.StateError | ValueError)
    assert "a.b" in str(refused)
    store.commit(state, step=1)
    with pytest.raises(ckptstore.StateError, match="one name in DCP"):
        StoreReader(store, step=1).read_metadata()


def test_another_dtype_is_no_fit_unless_asked(store):
    save({"x": torch.arange(3000.0), "y": torch.ones(5)}, store)
    state: Any = {"x": torch.zeros(3000, dtype=torch.float64), "y": torch.zeros(5)}
    refused = failure(lambda: load(state, store))
    assert isinstance(refused, ckptstore.StateError)
    assert "float64" in str(refused)
    assert not state["y"].any()
    assert load(state, store, allow_cast=True)["x"].equal(torch.arange(3000.0, dtype=torch.float64))


@pytest.mark.parametrize("size", [3, 3000])
def test_a_target_whose_storage_was_freed(store, size):
    save({"x": torch.ones(size)}, store)
    freed = torch.zeros(size)
    freed.untyped_storage().resize_(0)
    refused = failure(lambda: load({"x": freed}, store))
    assert isinstance(refused, ckptstore.StateError)
    assert "storage was freed" in str(refused)


def test_imaginary_parts_are_not_lost(store):
    save({"x": torch.ones(3000, dtype=torch.complex64)}, store)
    state: Any = {"x": torch.zeros(3000)}
    refused = failure(lambda: load(state, store, allow_cast=True))
    assert isinstance(refused, ckptstore.StateError)
    assert "complex64" in str(refused)
    assert not state["x"].any()


def test_what_is_not_there(store):
    save({"x": torch.ones(3)}, store)
    with pytest.raises(CheckpointException, match="no step 7"):
        load({"x": torch.ones(3)}, store, step=7)
    with pytest.raises(CheckpointException, match="Missing key"):
        load({"y": torch.ones(3)}, store)
    with pytest.raises(ckptstore.StepNotFound):
        StoreReader(store, step=7).read_metadata()


def test_a_planned_tensor_that_nobody_writes(store):
    class Forgetful(DefaultSavePlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            plan.items[:] = [item for item in plan.items if item.index.fqn != "model.b"]
            return plan

    state: Any = {"model": {"a": torch.ones(3), "b": torch.ones(3)}}
    refused = failure(lambda: save(state, store, planner=Forgetful()))
    assert isinstance(refused, ckptstore.StateError)
    assert "model.b" in str(refused)
    assert store.steps() == []


@pytest.mark.parametrize(
    "bad", [{"step": -1}, {"step": "x"}, {"step": 1, "run": "a@b"}, {"step": 1, "metadata": {"a": {1}}}]
)
def test_bad_arguments_fail_at_once(store, bad):
    with pytest.raises(ckptstore.InvalidArgument):
        StoreWriter(store, **bad)


def test_options_are_for_urls(store):
    with pytest.raises(ckptstore.InvalidArgument, match="catalog"):
        StoreWriter(store, step=1, catalog="sqlite:///x")


@pytest.mark.parametrize("shape", [(1,) * 65, (0, 2**31, 2**31)])
def test_a_tensor_of_a_form_that_numpy_lacks_is_refused(store, shape):
    refused = failure(lambda: save({"x": torch.empty(shape)}, store))
    assert isinstance(refused, ckptstore.UnsupportedLeaf)
    assert "'x'" in str(refused)
    assert store.steps() == []


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("form", ["sparse_coo", "quantized"])
def test_a_tensor_that_is_not_dense_is_refused(store, form):
    dense = torch.eye(3)
    made = dense.to_sparse() if form == "sparse_coo" else torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
    refused = failure(lambda: save({"x": made}, store))
    assert isinstance(refused, ckptstore.UnsupportedLeaf)
    assert "'x'" in str(refused) and form in str(refused)


def test_a_tensor_without_memory_is_refused(store):
    """As those of the other stages of a pipeline, where each process has made its own alone."""
    refused = failure(lambda: save({"x": torch.empty(3, device="meta")}, store))
    assert isinstance(refused, ckptstore.UnsupportedLeaf)
    assert re.search(r"'x'.*meta device.*to_empty", str(refused))


# asynchronous saves


def test_saves_in_a_thread(store):
    state: Any = {"x": torch.ones(3000), "step": 3}
    writer = StoreWriter(store, step=1)
    first: Any = async_save(state, storage_writer=writer)
    state["x"].zero_()
    second: Any = async_save(state, storage_writer=StoreWriter(store.url, step=2))
    for save_of in (first, second):
        save_of.result()
    assert [int(store.checkout(step)["x"].sum()) for step in (1, 2)] == [3000, 0]
    again: Any = async_save(state, storage_writer=writer)
    with pytest.raises(CheckpointException, match="StepExists"):
        again.result()


def test_plans_are_cached(store):
    for step in range(3):
        planner = StoreSavePlanner(enable_plan_caching=True)
        save({"x": torch.full((3000,), float(step)), "step": step}, store, step=step, planner=planner)
    assert [store.checkout(step)["x"][0] for step in range(3)] == [0, 1, 2]


def test_writers_go_to_other_processes(place):
    with ckptstore.open(place) as store:
        writers = [StoreWriter(store, step=1, metadata={"a": 1}), StoreWriter(place, step=2)]
        for writer in map(pickle.loads, map(pickle.dumps, writers)):
            dcp_save({"x": torch.ones(3)}, storage_writer=writer)
        assert store.steps() == [1, 2]
        assert store.find(1).metadata == {"a": 1}


def test_the_face_does_not_wait_for_dcp():
    code = (
        "import sys, ckptstore.operations.committing.commit; assert 'torch.distributed.checkpoint' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
