"""Train with DDP under torchrun: when a rank has died, new ones go on with the same bits, random numbers included.

python examples/ddp_train.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from elastic import EVERY, STEPS, begin, may_die
from tiny_lm import TinyLM, batch, corpus, loss_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ckptstore


def train(folder: str, run: str, dies_at: int) -> None:
    """One rank's part."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    seed_all(dist.get_rank())  # each drops out other units; the weights are the first one's, as DDP sees to
    model = DistributedDataParallel(TinyLM(layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    app_state: dict[str, Any] = {
        "model": model.module,
        "optimizer": optimizer,
        "losses": losses,
        "rng": ckptstore.RNGState(),  # what differs from rank to rank is kept for each
    }
    text = corpus()
    with ckptstore.open(folder, run=run) as store:
        start = store.latest() or 0
        if start:
            store.checkout(start, into=app_state)
        for step in range(start + 1, STEPS + 1):
            losses.append(train_step(model, optimizer, *batch(text, step * 512)))
            if step % EVERY == 0:
                store.commit(app_state, step=step)
            may_die(step, dies_at)
    dist.destroy_process_group()


def seed_all(seed: int) -> None:
    """What `RNGState` holds."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - RNGState holds the global generator
    torch.manual_seed(seed)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """One step on this rank's rows of a batch; the mean loss of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    loss = loss_of(model, inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach() / ranks
    dist.all_reduce(mean)
    return mean.item()


if __name__ == "__main__":
    begin(__file__, train, ranks=2, ranks_later=2)
