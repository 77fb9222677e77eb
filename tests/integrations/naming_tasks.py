"""Stages of a pipeline that are sharded, and models that are wrapped; see `rank_child`."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter
from tests.integrations.rank_child import local, square

NAMING_TASKS: dict[str, Callable[..., Any]] = {}
NAMES = StateDictOptions(flatten_optimizer_state_dict=True)


def task(function):
    NAMING_TASKS[function.__name__] = function
    return function


class Named:
    """A model and its optimizer under the names that DCP gives them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        weights, moments = get_state_dict(self.model, self.optimizer, options=NAMES)
        return {"model": weights, "optim": moments}

    def load_state_dict(self, state):
        weights, moments = state["model"], state["optim"]
        set_state_dict(self.model, self.optimizer, model_state_dict=weights, optim_state_dict=moments, options=NAMES)


def layers(chosen=slice(None)):
    torch.manual_seed(0)
    every = [(name, torch.nn.Linear(41, 41)) for name in ("first", "second", "third", "fourth")]
    return torch.nn.Sequential(OrderedDict(every[chosen]))


def made(group, way):
    """The same model and an optimizer, as the ranks of a group have them."""
    whole: Any = layers()
    if way == "stages":
        whole = layers(slice(2 * stage(group), 2 * stage(group) + 2))
        fully_shard(whole, mesh=square(dist.get_world_size(group))["inner"])
    elif way == "FSDP":
        fully_shard(whole, mesh=DeviceMesh.from_group(group, "cpu"))
    elif way == "DDP":
        whole = DistributedDataParallel(whole, process_group=group)
    elif way == "compiled":
        whole = torch.compile(fully_shard(whole, mesh=DeviceMesh.from_group(group, "cpu")), backend="eager")
    return whole, torch.optim.AdamW(whole.parameters(), lr=0.05)


def stage(group):
    return square(dist.get_world_size(group))["outer"].get_local_rank()


def take_step(model, optimizer):
    """Changes every number in another way, however the model is cut."""
    for parameter in model.parameters():
        parameter.grad = torch.sin(100 * parameter.detach())
    optimizer.step()
    optimizer.zero_grad()


def prints(model, optimizer):
    """Of everything that this rank has of its state, whole."""
    options = StateDictOptions(flatten_optimizer_state_dict=True, full_state_dict=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    return {name: print_of(value) for name, value in {**weights, **moments}.items()}


def print_of(value):
    encoded = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
    return hashlib.sha256(encoded).hexdigest()


@task
def train_by_names(group, place, way, how, start):
    """Go on from a step, and commit the next: what was loaded, and what was saved."""
    model, optimizer = made(group, way)
    with ckptstore.open(place) as store:
        if start:
            check_out_by_names(store, group, model, optimizer, start)
        loaded = prints(model, optimizer) if start else None
        take_step(model, optimizer)
        state = Named(model, optimizer).state_dict()
        if how == "at once":
            store.commit(state, step=start + 1, process_group=group)
        else:
            handle = store.commit_async(state, step=start + 1, process_group=group)
            saved = prints(model, optimizer)
            take_step(model, optimizer)
            handle.result(60)
            return loaded, saved
    return loaded, prints(model, optimizer)


def check_out_by_names(store, group, model, optimizer, step):
    """Fills the parameters where they are, with nothing of other stages."""
    named = Named(model, optimizer)
    state: dict[str, Any] = named.state_dict()
    places = [local(parameter.data).data_ptr() for parameter in model.parameters()]
    names = [set(part) for part in state.values()]
    store.checkout(step, into=state, process_group=group, strict=False)
    assert [set(part) for part in state.values()] == names
    named.load_state_dict(state)
    assert [local(parameter.data).data_ptr() for parameter in model.parameters()] == places


@task
def train_by_an_object(group, place, way, how, start):
    """The same with an object that does so itself."""
    model, optimizer = made(group, way)
    app_state = {"training": Named(model, optimizer)}
    with ckptstore.open(place) as store:
        if start:
            store.checkout(start, into=app_state, process_group=group)
        loaded = prints(model, optimizer) if start else None
        take_step(model, optimizer)
        saved = prints(model, optimizer)
        if how == "at once":
            store.commit(app_state, step=start + 1, process_group=group)
        else:
            handle = store.commit_async(app_state, step=start + 1, process_group=group)
            take_step(model, optimizer)
            handle.result(60)
    return loaded, saved


@task
def train_stages(group, place, optim):
    """Stages that give their modules and optimizers themselves."""
    model, optimizer = made(group, "stages")
    app_state = {"model": model, optim.format(stage(group)): optimizer}
    take_step(model, optimizer)
    with ckptstore.open(place) as store:
        store.commit(app_state, step=1, process_group=group)
        saved = prints(model, optimizer)
        take_step(model, optimizer)
        store.checkout(1, into=app_state, process_group=group, strict=False)
    return prints(model, optimizer) == saved


@task
def train_uneven_stages(group, place):
    """Stages whose parameters of one number have other shapes."""
    model: Any = torch.nn.Linear(4, 300 + stage(group))
    fully_shard(model, mesh=square(dist.get_world_size(group))["inner"])
    optimizer = torch.optim.AdamW(model.parameters())
    take_step(model, optimizer)
    with ckptstore.open(place) as store:
        store.commit({"optim": optimizer}, step=1, process_group=group)


@task
def save_sharded_tensor(group, place):
    """A ShardedTensor through DCP; the message when it is committed without."""
    saved, found = sharded(group), sharded(group)
    shard = found.local_shards()[0].tensor.zero_()
    writer = StoreWriter(place, step=1, process_group=group)
    dcp_save({"table": {"w": saved}}, storage_writer=writer, process_group=group)
    dcp_load({"table": {"w": found}}, storage_reader=StoreReader(place, step=1), process_group=group)
    assert shard.equal(saved.local_shards()[0].tensor)
    with ckptstore.open(place) as store:
        store.commit({"table": {"w": saved}}, step=2, process_group=group)


def sharded(group):
    spec = ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(dist.get_world_size(group))])
    tensor = sharded_tensor.zeros(spec, 301, 40, process_group=group)
    for shard in tensor.local_shards():
        shard.tensor.copy_(whole_table()[shard.metadata.shard_offsets[0] :][: len(shard.tensor)])
    return tensor


def whole_table():
    return torch.arange(301 * 40.0).view(301, 40)
