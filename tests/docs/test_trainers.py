"""What the page about trainers shows, with the real libraries."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch

import ckptstore

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
EPOCHS, BATCHES, EVERY = 3, 10, 3

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # torch's, and Accelerate's about cores that are idle


class Killed(Exception):
    """Stands for the end of a process."""


@pytest.fixture(autouse=True)
def accelerator_of_its_own():
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def train(place, run, *, kill_at=-1):
    """The page's block, in a script that begins anew."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert block.count("% 100 ==") == 1
    seed()
    order = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=order)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    rows: Any = torch.randn(4 * BATCHES, 8)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    def train_step(batch):
        if names["progress"]["step"] == kill_at:
            raise Killed
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()

    names: dict[str, Any] = {"accelerator": accelerator, "model": model, "optimizer": optimizer, "ckptstore": ckptstore}
    with ckptstore.open(place, run=run) as store:
        names |= {"scheduler": scheduler, "loader": loader, "store": store, "epochs": EPOCHS, "train_step": train_step}
        exec(compile(block.replace("% 100 ==", f"% {EVERY} =="), PAGE.name, "exec"), names)


def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def test_accelerate(tmp_path):
    train(tmp_path, "straight")
    for kill_at in (4, 14, 20, 21):
        with pytest.raises(Killed):
            train(tmp_path, "killed", kill_at=kill_at)
        random.random()
    train(tmp_path, "killed")
    with ckptstore.open(tmp_path, run="killed") as store:
        assert store.steps() == [*range(0, EPOCHS * BATCHES, EVERY), EPOCHS * BATCHES]
        assert [step for step in store.steps() if store.diff(f"straight@{step}", step).changes] == []
    train(tmp_path, "killed")
