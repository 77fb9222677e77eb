"""Train with FSDP2 under torchrun: when a rank has died, twice as many go on, with the same bits.

python examples/fsdp2_train.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from elastic import EVERY, STEPS, begin, may_die
from tiny_lm import TinyLM, batch, corpus, loss_of
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import ckptstore
from ckptstore.integrations.dcp import StoreReader, StoreWriter

MICRO_BATCHES = 4
"""Of each step, whatever the number of ranks."""


def train(folder: str, run: str, dies_at: int) -> None:
    """One rank's part."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = sharded(TinyLM(layers=2, dropout=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = corpus()
    with ckptstore.open(folder, run=run) as store:
        start = store.latest() or 0
        losses = resume(store, start, model, optimizer) if start else []
        for step in range(start + 1, STEPS + 1):
            losses.append(train_step(model, optimizer, *batch(text, step * 512)))
            if step % EVERY == 0:
                save(state_of(model, optimizer, losses), storage_writer=StoreWriter(store, step=step))
            may_die(step, dies_at)
    dist.destroy_process_group()


def sharded(model: TinyLM) -> TinyLM:
    """Each rank has a part of every tensor. Gradients add up to the same bits in any order, since float64 has room."""
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float64)
    for block in model.blocks:
        fully_shard(block, mp_policy=exact)
    fully_shard(model, mp_policy=exact)
    return model


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> dict[str, Any]:
    """All that a new start needs."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "losses": losses}


def resume(store: ckptstore.Store, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses until then."""
    state = state_of(model, optimizer, [])
    load(state, storage_reader=StoreReader(store, step=step))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["losses"]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """One step on this rank's micro-batches of a batch; the mean loss of all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = list(zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True))[rank::ranks]
    total = torch.zeros((), dtype=torch.float64)
    optimizer.zero_grad()
    for number, (some, expected) in enumerate(pairs, 1):
        cast("FSDPModule", model).set_requires_gradient_sync(number == len(pairs))
        loss = loss_of(model, some, expected)
        (loss / len(pairs)).backward()
        total += loss.detach() / MICRO_BATCHES
    optimizer.step()
    dist.all_reduce(total)
    return total.item()


if __name__ == "__main__":
    begin(__file__, train, ranks=2, ranks_later=4)
