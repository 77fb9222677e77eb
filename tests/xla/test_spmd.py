"""The documented example of torch_xla's planners, over a store: `dcp.save` and `dcp.load` of sharded tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch_xla
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.distributed_checkpoint._helpers import _sharded_cpu_state_dict

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter
from tests.xla.layouts import LAYOUTS, laid_out, tensors


def as_tree(model, step):
    return {"model": model, "optim": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}, "step": step}


def save(state, store, step, **options):
    dcp_save(state, storage_writer=StoreWriter(store, step=step, **options), planner=SPMDSavePlanner())


def load(layout, store, step, *, values=True) -> Any:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors(0).items()}
    model = laid_out(zeros, layout)
    state = as_tree(model, -1) if values else {"model": model}
    dcp_load(state, storage_reader=StoreReader(store, step=step), planner=SPMDLoadPlanner())
    torch_xla.sync()
    return state


def assert_same(found, seed):
    wanted = tensors(seed)
    assert found.keys() == wanted.keys()
    assert [name for name, tensor in wanted.items() if not tensor.equal(found[name].cpu())] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_loaded_into_every_other(spmd, store, layout):
    save(as_tree(laid_out(tensors(1), layout), 7), store, 7)
    for other in LAYOUTS:
        found = load(other, store, 7)
        assert_same(found["model"], 1)
        assert (found["step"], found["optim"]) == (7, as_tree({}, 7)["optim"])
    assert_same(store.checkout(7)["model"], 1)
    assert store.verify().problems == ()


def test_the_same_weights_are_stored_once_however_they_are_tiled(spmd, store):
    store.commit(as_tree(tensors(1), 0), step=0)
    for step, layout in enumerate(LAYOUTS, 1):
        save(as_tree(laid_out(tensors(1), layout), 0), store, step)
    first, *others = (store.find(step) for step in store.steps())
    assert all(commit.new_bytes <= first.new_bytes / 10 for commit in others)
    assert store.read(1, "model/weight", index=(slice(10, 200), 3)).equal(tensors(1)["weight"][10:200, 3])


def test_commits_of_the_host_are_loaded(spmd, store):
    store.commit({"model": tensors(2)}, step=3)
    for layout in LAYOUTS:
        assert_same(load(layout, store, 3, values=False)["model"], 2)


def test_shards_on_the_host_are_saved_in_a_thread(spmd, store):
    """As torch_xla's manager does it."""
    model = laid_out(tensors(1), "blocks")
    apart = _sharded_cpu_state_dict(as_tree(model, 1))
    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(save, apart, store, 1)
        for tensor in model.values():
            tensor.zero_()
        saving.result()
    assert_same(store.checkout(1)["model"], 1)


def test_a_tensor_that_the_planner_loses_is_reported(spmd, store):
    """Tiled in one dim of a mesh and replicated in the other: `dedup_tensors` drops both of two same shards."""
    state = as_tree(laid_out(tensors(1), "partly replicated"), 1)
    with pytest.raises(CheckpointException) as caught:
        save(state, store, 1)
    (refused, _), *_ = caught.value.failures.values()
    assert isinstance(refused, ckptstore.StateError)
    assert "no rank was to write it" in str(refused)
    assert store.steps() == []
    store.commit(state, step=1)
    assert_same(store.checkout(1)["model"], 1)
