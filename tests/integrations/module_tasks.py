"""Ranks that train a model which is parallel in some way, each from where ranks of another way stopped."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim.lr_scheduler import StepLR
from torch.utils._pytree import tree_flatten_with_path

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter


def parallel(group, way):
    """The same model and its optimizer, as the ranks of a group have them; no plan tells of the first layer."""
    torch.manual_seed(0)
    norm, up, down = torch.nn.LayerNorm(37), torch.nn.Linear(37, 48), torch.nn.Linear(48, 3)
    model: Any = torch.nn.Sequential(OrderedDict(norm=norm, up=up, act=torch.nn.ReLU(), down=down))
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


def train_zero(group, place, start, stop):
    """Train with a ZeroRedundancyOptimizer, resumed as the page for those who come from DCP says."""
    page = (Path(__file__).parents[2] / "docs" / "from-dcp.md").read_text()
    told: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(class .*?)^```", page, re.DOTALL | re.MULTILINE)[0], told)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(37, 48), torch.nn.ReLU(), torch.nn.Linear(48, 3))
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=0.05)
    scheduler = StepLR(zero, 2)
    state = {"model": model, "optim": zero.optim, "groups": told["Groups"](zero), "scheduler": scheduler}
    losses = []
    with ckptstore.open(place) as store:
        if start:
            store.checkout(start, into=state, process_group=group)
        for step in range(start, stop):
            losses.append(take_step(model, zero, step))
            scheduler.step()
        store.commit(state, step=stop, process_group=group)
    return losses


MODULE_TASKS: dict[str, Callable[..., Any]] = {"train_parallel": train_parallel, "train_zero": train_zero}
