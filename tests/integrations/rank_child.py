"""One rank of a job of several processes. Reads orders, a line of JSON each: [task, count of ranks, arguments].

The task is carried out by that many of the first ranks, in a group of their own; each answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import ckptstore
from ckptstore.integrations.dcp import StoreLoadPlanner, StoreReader, StoreSavePlanner, StoreWriter

warnings.simplefilter("ignore")

CHUNK_BYTES = 4096
LAYOUTS = {
    "plain": None,
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "replicated": [Replicate()],
    "grid": [Shard(0), Shard(1)],
    "rows twice": [_StridedShard(0, split_factor=2), Shard(0)],
    "replicated rows": [Replicate(), Shard(0)],
}
"""Name → placements; those with two need four ranks."""

TASKS: dict[str, Callable[..., Any]] = {}


def task(function):
    TASKS[function.__name__] = function
    return function


def tensors(seed):
    """The whole state, the same on every rank."""
    random = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(301, 67, generator=random),
        "embedding": torch.randn(128, 64, generator=random).to(torch.bfloat16),
        "deep": torch.randint(0, 9, (5, 7, 40, 3), generator=random),
        "short": torch.randn(3, 2, generator=random),
        "narrow": torch.randn(2, 3000, generator=random),
        "drift": drifting(seed),
        "one row": torch.randn(1, 3000, generator=random),
        "empty": torch.empty(0, 4),
    }


def drifting(seed):
    """Weights that a few steps of training change a little."""
    base = torch.randn(512, 128, generator=torch.Generator().manual_seed(-1))
    return base * (1 + 1e-5 * torch.randn(512, 128, generator=torch.Generator().manual_seed(seed)))


def laid_out(state, layout, group):
    """Every tensor as this rank has it."""
    placements = LAYOUTS[layout]
    if placements is None:
        return dict(state)
    mesh = DeviceMesh.from_group(group, "cpu") if len(placements) == 1 else square(dist.get_world_size(group))
    return {name: distribute_tensor(tensor, mesh, placements, src_data_rank=None) for name, tensor in state.items()}


@cache
def square(count):
    """Made once: every group has threads, which wake up again and again."""
    return DeviceMesh("cpu", torch.arange(count).view(2, -1), mesh_dim_names=("outer", "inner"))


def as_tree(model, step):
    return {"model": model, "optim": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}, "step": step}


@task
def save(group, place, step, layout="rows", seed=0, same=True, **options):
    model = laid_out(tensors(seed), layout, group)
    writer = StoreWriter(place, step=step, process_group=group, **options)
    dcp_save(as_tree(model, step if same else 0), storage_writer=writer, process_group=group)


@task
def load(group, place, step, layout="rows", seed=0, planner=False, **options):
    """Which tensors are not what they should be."""
    wanted = laid_out(tensors(seed), layout, group)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors(seed).items()}
    state = as_tree(laid_out(zeros, layout, group), -1)
    reader = StoreReader(place, step=step, **options)
    dcp_load(state, storage_reader=reader, process_group=group, planner=StoreLoadPlanner() if planner else None)
    assert state["step"] == step
    assert state["optim"] == {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}
    return [name for name, tensor in wanted.items() if not local(state["model"][name]).equal(local(tensor))]


@task
def save_in_background(group, place, step, kind):
    state = as_tree(laid_out(tensors(step), "rows", group), step)
    saved: Any = async_save(
        state,
        storage_writer=StoreWriter(place, step=step, process_group=group),
        process_group=group,
        async_checkpointer_type=getattr(AsyncCheckpointerType, kind),
    )
    for tensor in state["model"].values():
        local(tensor).zero_()
    saved.result()


class Failing(StoreSavePlanner):
    """Fails, or dies, where it is asked for the data of a tensor."""

    def __init__(self, fail):
        super().__init__()
        self._fail = fail

    def resolve_data(self, write_item):
        if write_item.index.fqn == "model.deep":
            self._fail()
        return super().resolve_data(write_item)


class Dying(StoreWriter):
    """Dies after it has written all that is its."""

    def write_data(self, plan, planner):
        super().write_data(plan, planner)
        die()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise OSError("the tensor is gone")


@task
def save_and_fail(group, place, step, how, who):
    """One rank fails, or dies before, during or after its writes."""
    mine = dist.get_rank(group) == who
    if mine and how == "before":
        die()
    writer = (Dying if mine and how == "after" else StoreWriter)(place, step=step, process_group=group)
    act = {"during": die, "fail": fail}.get(how) if mine else None
    state = as_tree(laid_out(tensors(step), "columns", group), step)
    dcp_save(state, storage_writer=writer, process_group=group, planner=Failing(act) if act else None)


@task
def save_with_cached_plans(group, place, steps):
    for step in range(steps):
        writer = StoreWriter(place, step=step, process_group=group)
        state = as_tree(laid_out(tensors(step), "columns", group), step)
        dcp_save(state, storage_writer=writer, process_group=group, planner=Caching())


class Caching(StoreSavePlanner):
    """Has caches of its own, which go by the name of the class."""

    def __init__(self):
        super().__init__(enable_plan_caching=True)


@task
def save_own_values(group, place, step):
    """Each rank has a key of its own, and loads it."""
    own = f"rng {dist.get_rank(group)}"
    tensor = torch.full((600,), dist.get_rank(group))
    state: dict[str, Any] = {
        own: tensor,
        "names": {own: own},
        "same": (torch.ones(600), 1),
        f"pair of {own}": (tensor, own),
    }
    writer = StoreWriter(place, step=step, process_group=group)
    dcp_save(state, storage_writer=writer, process_group=group, planner=StoreSavePlanner())
    found: dict[str, Any] = {own: torch.zeros(600, dtype=torch.int64), "names": {own: ""}}
    found |= {"same": None, f"pair of {own}": None}
    dcp_load(found, storage_reader=StoreReader(place, step=step), process_group=group)
    assert found["same"][0].equal(torch.ones(600))
    pair = found[f"pair of {own}"]
    return [found[own].equal(tensor) and pair[0].equal(tensor) and pair[1] == own, found["names"]]


@task
def save_a_part_in_a_tuple(group, place, step):
    state = {"pair": (laid_out({"w": torch.ones(8)}, "rows", group)["w"], 1)}
    writer = StoreWriter(place, step=step, process_group=group)
    dcp_save(state, storage_writer=writer, process_group=group, planner=StoreSavePlanner())


@task
def save_without_collectives(group, place, step):
    writer = StoreWriter(place, step=step, process_group=group)
    dcp_save({"x": 1}, storage_writer=writer, process_group=group, use_collectives=False)


@task
def save_with_another_coordinator(group, place, step):
    writer = StoreWriter(place, step=step, process_group=group)
    save_state_dict(as_tree(laid_out(tensors(step), "rows", group), step), writer, group, coordinator_rank=1)


def with_own(rank):
    return {"model": {"w": torch.ones(300)}, "progress": {"seen": rank, "mean": torch.full((40,), float(rank))}}


@task
def commit_with_own(group, place, step):
    """Ranks have something each for itself, which is no DCP's."""
    with ckptstore.open(place) as store:
        store.commit(with_own(dist.get_rank(group)), step=step, process_group=group)


@task
def load_own(group, place, step, asked=None):
    """What this rank gets; `asked` is a rank whose own it asks for."""
    progress: Any = {"seen": -1, "mean": torch.zeros(40)}
    state: dict[str, Any] = {"model": {"w": torch.zeros(300)}}
    state |= {"progress": progress} if asked is None else {str(asked): {"progress": progress}}
    reader = StoreReader(place, step=step, process_group=group)
    dcp_load(state, storage_reader=reader, process_group=group)
    assert state["model"]["w"].equal(torch.ones(300))
    return [progress["seen"], progress["mean"].sum().item()]


@task
def save_with_files(group, folder, form="TORCH_SAVE"):
    state = as_tree(laid_out(tensors(4), "rows", group), 0)
    writer = FileSystemWriter(folder, serialization_format=SerializationFormat[form])
    dcp_save(state, storage_writer=writer, process_group=group)


def network(group):
    """A model under FSDP2, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(37, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


@task
def train(group, place, first, last):
    """Goes on after the step `first`, if that is not 0, to `last`; every loss."""
    model, optimizer = network(group)
    if first:
        weights, moments = get_state_dict(model, optimizer)
        state: Any = {"model": weights, "optim": moments}
        dcp_load(state, storage_reader=StoreReader(place, step=first), process_group=group)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    losses = []
    for step in range(first, last):
        data = torch.randn(8, 37, generator=torch.Generator().manual_seed(step))
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    weights, moments = get_state_dict(model, optimizer)
    writer = StoreWriter(place, step=last, process_group=group)
    dcp_save({"model": weights, "optim": moments}, storage_writer=writer, process_group=group)
    return losses


@task
def save_with_one_catalog(group, place, step):
    """All but the first rank are given a catalog that is not there."""
    options: dict[str, Any] = {} if dist.get_rank(group) == 0 else {"catalog": "postgresql://nobody@127.0.0.1:1/none"}
    writer = StoreWriter(place, step=step, process_group=group, **options)
    state = as_tree(laid_out(tensors(step), "columns", group), step)
    dcp_save(state, storage_writer=writer, process_group=group)


@task
def save_apart(group, places, steps):
    """Ranks that disagree."""
    rank = dist.get_rank(group)
    writer = StoreWriter(places[rank % len(places)], step=steps[rank % len(steps)], process_group=group)
    dcp_save(as_tree(laid_out(tensors(1), "rows", group), 1), storage_writer=writer, process_group=group)


@task
def save_with_a_hole(group, place, step):
    """Shards of different tensors under one name."""
    rank = dist.get_rank(group)
    model = laid_out({"x": torch.ones(300 + rank, 40)}, "rows", group)
    writer = StoreWriter(place, step=step, process_group=group)
    dcp_save({"model": model}, storage_writer=writer, process_group=group, planner=Unchecked())


class Unchecked(StoreSavePlanner):
    """Does not look at whether shards fit."""

    def create_global_plan(self, all_plans):
        return create_default_global_save_plan(all_plans)


@task
def save_in_the_wrong_group(group, place, step):
    dcp_save({"x": torch.ones(3)}, storage_writer=StoreWriter(place, step=step), process_group=group)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def serve(folder, rank, count):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    groups = {size: dist.new_group(list(range(size))) for size in range(1, count + 1)}
    for line in sys.stdin:
        name, size, arguments = json.loads(line)
        if rank >= size:
            continue
        try:
            answer = {"value": TASKS[name](groups[size], **arguments)}
        except BaseException as error:  # noqa: BLE001 - DCP's own is none else
            failures = {rank: repr(failed[0]) for rank, failed in getattr(error, "failures", {}).items()}
            text = "".join(traceback.format_exception(error))
            answer = {"error": type(error).__name__, "failures": failures, "traceback": text}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    from tests.integrations.background_tasks import BACKGROUND_TASKS
    from tests.integrations.device_tasks import DEVICE_TASKS
    from tests.integrations.module_tasks import MODULE_TASKS
    from tests.integrations.naming_tasks import NAMING_TASKS
    from tests.integrations.replicated_tasks import REPLICATED_TASKS
    from tests.integrations.together_tasks import MORE_TASKS

    TASKS |= MORE_TASKS | MODULE_TASKS | BACKGROUND_TASKS | DEVICE_TASKS | REPLICATED_TASKS | NAMING_TASKS
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
