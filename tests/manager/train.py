"""A training for the tests: train.py FOLDER RUN [every=N] [stuck=N], one step for each line of its input."""

from __future__ import annotations

import random
import sys
import threading

import numpy as np
import torch

import ckptstore
from ckptstore.storage.local import LocalStorage

STEPS = 12


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def get_stuck(step: int) -> None:
    """Let no pack be stored from now on."""

    def stuck(self, key, parts):
        say(f"writing {step}")
        threading.Event().wait()

    LocalStorage.put = stuck  # type: ignore[method-assign]


def main(folder: str, run: str, *options: str) -> None:
    given = {name: int(value) for name, value in (option.split("=") for option in options)}
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Dropout(0.3), torch.nn.Linear(60, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    app_state = {"model": model, "optimizer": optimizer, "schedule": schedule, "rng": ckptstore.RNGState()}
    with (
        ckptstore.open(folder, run=run) as store,
        ckptstore.CheckpointManager(store, given.get("every", 4), keep=ckptstore.KeepLast(5)) as manager,
    ):
        start = manager.latest_step()
        if start is not None:
            manager.restore(start, app_state)
            say(f"resumed {start}")
        for step in range((start or 0) + 1, STEPS + 1):
            sys.stdin.readline()
            if step == given.get("stuck"):
                manager.join()
                get_stuck(step)
            loss = model(torch.randn(8, 40)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            manager.save(step, app_state, {"loss": loss.item()})
            if step != given.get("stuck"):
                say(f"step {step}")
            if manager.reached_preemption(step):
                say(f"preempted at {step}")
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
