"""Planners other than DCP's own; see `tests/xla` for the ones that these are like."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter
from tests.integrations.tiled_planners import Far, TiledLoadPlanner, TiledSavePlanner

TILINGS = [
    {},
    {"weight": (4, 1), "few": (4, 1)},
    {"weight": (1, 4), "few": (1, 4)},
    {"weight": (2, 2), "few": (2, 2)},
    {"weight": (3, 5), "few": (4, 4)},
]


def tensors():
    random = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(301, 67, generator=random),
        "few": torch.randn(5, 3, generator=random),
        "far": torch.randn(200, 40, generator=random),
    }


def state_of(model, step) -> Any:
    return {**model, "far": model["far"].as_subclass(Far), "step": step}


@pytest.mark.parametrize("tiling", TILINGS)
def test_every_tiling_is_loaded_into_every_other(store, tiling):
    save(state_of(tensors(), 7), storage_writer=StoreWriter(store, step=1), planner=TiledSavePlanner(tiling))
    for other in TILINGS:
        found = state_of({name: torch.zeros_like(tensor) for name, tensor in tensors().items()}, 0)
        load(found, storage_reader=StoreReader(store, step=1), planner=TiledLoadPlanner(other))
        assert found.pop("step") == 7
        assert found["far"].writes == 1  # each write would be a program for such a device
        assert [name for name, tensor in tensors().items() if not torch.equal(tensor, found[name].cpu())] == []
    assert store.checkout(1)["weight"].equal(tensors()["weight"])
    assert store.verify().problems == ()


def test_tilings_share_chunks(store):
    for step, tiling in enumerate(TILINGS):
        save(state_of(tensors(), 7), storage_writer=StoreWriter(store, step=step), planner=TiledSavePlanner(tiling))
    assert store.stats().packs == {"live": 1}
    assert store.read(3, "weight", index=(slice(10, 200), 3)).equal(tensors()["weight"][10:200, 3])


class Buffering(DefaultLoadPlanner):
    """Has memory for one tensor at a time, as `resolve_tensor` and `commit_tensor` are called in pairs."""

    buffer = torch.empty(301 * 67)
    waiting: torch.Tensor | None = None

    def resolve_tensor(self, read_item):
        assert self.waiting is None
        self.waiting = super().resolve_tensor(read_item)
        return self.buffer[: self.waiting.numel()].view(self.waiting.shape)

    def commit_tensor(self, read_item, tensor):
        assert self.waiting is not None
        self.waiting.copy_(tensor)
        self.waiting = None


def test_a_planner_gets_one_tensor_after_the_other(store):
    store.commit({"model": tensors()}, step=1)
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    load({"model": found}, storage_reader=StoreReader(store, step=1), planner=Buffering())
    assert [name for name, tensor in tensors().items() if not tensor.equal(found[name])] == []


class Adding(DefaultSavePlanner):
    """Adds to DCP's metadata, as torch's documentation of SavePlanner has it."""

    def create_global_plan(self, all_plans):
        plans, metadata = super().create_global_plan(all_plans)
        return plans, replace(metadata, planner_data=self.added(metadata))

    def added(self, metadata):
        return ["of rank 0"]


class AddingKeys(Adding):
    def added(self, metadata):
        return {**metadata.planner_data, "more": "of rank 0"}


@pytest.mark.parametrize(("planner", "named"), [(Adding, "'planner_data'.* list"), (AddingKeys, "'more'.* str")])
def test_what_no_load_would_find_again_is_refused(store, planner, named):
    with pytest.raises(CheckpointException) as caught:
        save({"weight": torch.ones(3)}, storage_writer=StoreWriter(store, step=1), planner=planner())
    (refused, _), *_ = caught.value.failures.values()
    assert isinstance(refused, ckptstore.StateError)
    assert re.search(f"{named} .*put it into the state", str(refused))
    assert store.steps() == []


class Losing(TiledSavePlanner):
    """Takes tiles that stand twice for a repetition, and drops all of them, as torch_xla's does."""

    def create_global_plan(self, all_plans):
        kept = [item for item in all_plans[0].items if item.index.fqn != "weight"]
        all_plans[0].items[:] = kept
        return super().create_global_plan(all_plans)


def test_a_tensor_that_the_planner_loses_is_reported(store):
    with pytest.raises(CheckpointException) as caught:
        save(state_of(tensors(), 7), storage_writer=StoreWriter(store, step=1), planner=Losing({"weight": (2, 2)}))
    (refused, _), *_ = caught.value.failures.values()
    assert isinstance(refused, ckptstore.StateError)
    assert "'weight' is in the state, but no rank was to write it" in str(refused)
    assert store.steps() == []
