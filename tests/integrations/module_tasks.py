"""Ranks that train a model which is parallel in some way, each from where ranks of another way stopped."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._pytree import tree_flatten_with_path

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter


def parallel(group, way):
    """The same model and its optimizer, as the ranks of a group have them."""
    torch.manual_seed(0)
    up, down = torch.nn.Linear(37, 48), torch.nn.Linear(48, 3)
    model: Any = torch.nn.Sequential(OrderedDict(up=up, act=torch.nn.ReLU(), down=down))
    by_names = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if way == "FSDP":
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    elif way == "TP":
        parallelize_module(model, DeviceMesh.from_group(group, "cpu"), by_names)
    else:
        mesh = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("outer", "inner"))
        if way == "TP in FSDP":
            parallelize_module(model, mesh["inner"], by_names)
        fully_shard(model, mesh=mesh if way == "HSDP" else mesh["outer"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def prints(model, optimizer):
    """A digest of every tensor, as a whole, of the model and the optimizer; other values as they are."""
    leaves, _ = tree_flatten_with_path(get_state_dict(model, optimizer))
    return {str(path): _print(leaf) for path, leaf in leaves}


def _print(leaf):
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    whole = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
    return hashlib.sha256(whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def train_parallel(group, place, way, through, start, stop):
    """Train from a step to another: what was loaded, the losses, and what was saved."""
    model, optimizer = parallel(group, way)
    if start:
        {"DCP": load_by_dcp, "store": load_by_store}[through](group, place, start, model, optimizer)
    loaded = prints(model, optimizer) if start else None
    losses = [take_step(model, optimizer, step) for step in range(start, stop)]
    {"DCP": save_by_dcp, "store": save_by_store}[through](group, place, stop, model, optimizer)
    return loaded, losses, prints(model, optimizer)


def take_step(model, optimizer, step):
    data = torch.randn(8, 37, generator=torch.Generator().manual_seed(step))
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save_by_dcp(group, place, step, model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    writer = StoreWriter(place, step=step, process_group=group)
    save({"model": weights, "optim": moments}, storage_writer=writer, process_group=group)


def load_by_dcp(group, place, step, model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optim": moments}
    load(state, storage_reader=StoreReader(place, step=step), process_group=group)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)


def save_by_store(group, place, step, model, optimizer):
    with ckptstore.open(place) as store:
        store.commit({"model": model, "optim": optimizer}, step=step, process_group=group)


def load_by_store(group, place, step, model, optimizer):
    with ckptstore.open(place) as store:
        store.checkout(step, into={"model": model, "optim": optimizer}, process_group=group)


MODULE_TASKS = {"train_parallel": train_parallel}
