"""Train on a machine that may be taken away: one last commit on SIGTERM, and a new start from it with the same bits.

python examples/preemptible_train.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from tiny_lm import TinyLM, batch, corpus, loss_of

import ckptstore

STEPS, EVERY = 60, 10
KEEP = ckptstore.KeepLast(2) | ckptstore.KeepBest("loss")


def train(folder: str, run: str) -> None:
    """Train from wherever the run stands, to the last step or to where the machine is taken away."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - RNGState holds the global generator
    torch.manual_seed(0)
    text = corpus()
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    app_state = {"model": model, "optimizer": optimizer, "rng": ckptstore.RNGState()}

    with (
        ckptstore.open(folder, run=run) as store,
        ckptstore.CheckpointManager(store, EVERY, keep=KEEP) as manager,
    ):
        start = manager.latest_step() or 0
        if start:
            manager.restore(start, app_state)
        for step in range(start + 1, STEPS + 1):
            loss = loss_of(model, *batch(text, step * 512))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            manager.save(step, app_state, metrics={"loss": round(loss.item(), 4)})
            print(step, flush=True)
            if manager.reached_preemption(step):
                break


def train_in_child(folder: str, run: str, *, preempt_at: int | None = None) -> int:
    """Train in a process that is told to go when it has reached a step, as Kubernetes and SLURM do; its last step."""
    child = subprocess.Popen([sys.executable, __file__, folder, run], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    step = 0
    for line in child.stdout:
        step = int(line)
        if step == preempt_at:
            child.terminate()
    if child.wait():
        raise SystemExit(f"the training ended with status {child.returncode}")
    return step


def main(folder: str) -> None:
    """The whole story."""
    reached = train_in_child(folder, "straight")
    print(f"run straight went to step {reached}")
    for preempt_at in (17, 34):
        reached = train_in_child(folder, "preempted", preempt_at=preempt_at)
        print(f"run preempted: SIGTERM after step {preempt_at}, last commit at step {reached}")
    reached = train_in_child(folder, "preempted")
    print(f"run preempted: resumed, went to step {reached}")

    with ckptstore.open(folder, run="preempted") as store:
        differences = store.diff(f"straight@{STEPS}", STEPS).changes
        print(f"differences to the undisturbed run at step {STEPS}: {len(differences)}")
        print(f"steps that were kept: {store.steps()}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
