"""Commits and managers of XLA tensors themselves, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla.experimental.distributed_checkpoint import prime_optimizer

import ckptstore
from tests.xla.layouts import LAYOUTS, laid_out, tensors
from tests.xla.test_spmd import assert_same


@pytest.mark.parametrize("layout", LAYOUTS)
def test_commits_and_checkouts(spmd, store, layout):
    store.commit({"model": laid_out(tensors(1), layout)}, step=1)
    model = laid_out(tensors(2), layout)
    tilings = tilings_of(model)
    handle = store.commit_async({"model": model}, step=2)
    for tensor in model.values():
        tensor.zero_()
    handle.result()
    for step in (1, 2):
        assert_same(store.checkout(step)["model"], step)
        store.checkout(step, into={"model": model})
        assert_same(model, step)
    assert tilings_of(model) == tilings


def tilings_of(model):
    """Of those that devices have as much of; others are replicated by whatever torch_xla does to them in place."""
    return [torch_xla._XLAC._get_xla_sharding_spec(model[name]) or "{replicated}" for name in ("embedding", "counts")]


def test_tensors_without_addresses_are_not_taken_for_one(spmd, store):
    base = torch.arange(24.0).view(4, 6).to(torch_xla.device())
    state = {
        "same": base,
        "again": base,
        "low": base[:2],
        "high": base[2:],
        "square": base[:4, :4],
        "turned": base[:4, :4].t(),
    }
    wanted = {name: tensor.cpu() for name, tensor in state.items()}
    store.commit(state, step=1)
    found = store.checkout(1)
    assert [name for name, tensor in wanted.items() if not tensor.equal(found[name])] == []
    assert found["same"] is found["again"]


def test_what_mark_sharding_returns_is_refused(spmd, store):
    tensor = laid_out({"weight": torch.ones(8, 8)}, "rows")["weight"]
    with pytest.raises(ckptstore.UnsupportedLeaf, match="XLAShardedTensor"):
        store.commit({"weight": xs.wrap_if_sharded(tensor)}, step=1)
    assert store.steps() == []


def training():
    """A model whose weights are sharded, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(37, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    weights = laid_out(model.state_dict(), "rows")
    model.load_state_dict(weights, assign=True)
    model.requires_grad_()
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def test_the_example_of_the_manager(spmd, store):
    """As in its docstring, with this manager; the resumed run goes as one that was never interrupted."""
    model, optimizer = training()
    with ckptstore.open(store.url, run="straight") as other:
        straight = run(ckptstore.CheckpointManager(other, 10), model, optimizer, range(1, 7))
    model, optimizer = training()
    first = run(ckptstore.CheckpointManager(store, 2), model, optimizer, range(1, 5))
    assert store.steps() == [2, 4]
    model, optimizer = training()
    with ckptstore.CheckpointManager(store, 2) as manager:
        best = max(manager.all_steps())
        prime_optimizer(optimizer)
        state: Any = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        manager.restore(best, state)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])
    assert first + run(ckptstore.CheckpointManager(store, 2), model, optimizer, range(5, 7)) == straight


def run(manager, model, optimizer, steps):
    losses = []
    with manager:
        for step in steps:
            data = torch.randn(8, 37, generator=torch.Generator().manual_seed(step)).to(torch_xla.device())
            loss = model(data).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            losses.append(loss.item())
            manager.save_async(step, {"model": model.state_dict(), "optim": optimizer.state_dict()})
    return losses
