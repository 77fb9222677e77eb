"""Train, get killed, resume: and end with the very same bits as a run that nobody disturbed.

python examples/quickstart.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tiny_lm import TinyLM, batch, corpus, loss_of

import ckptstore

STEPS, EVERY = 60, 5


def train(folder: str, run: str) -> None:
    """Train to the last step, from wherever the run stands."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - RNGState holds the global generator
    torch.manual_seed(0)
    text = corpus()
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    data = ckptstore.StateDict(position=0)
    app_state = {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "data": data,
        "rng": ckptstore.RNGState(),
    }

    with ckptstore.open(folder, run=run) as store:
        latest = store.latest()
        if latest is not None:
            store.checkout(latest, into=app_state)
        for step in range((latest or 0) + 1, STEPS + 1):
            loss = loss_of(model, *batch(text, data["position"]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            data["position"] += 512
            if step % EVERY == 0:
                store.commit_async(app_state, step=step, metadata={"loss": round(loss.item(), 4)})


def train_and_be_killed(folder: str, run: str) -> int:
    """Train in a child process, kill it at a random moment after some commits; the step it had reached."""
    child = subprocess.Popen([sys.executable, __file__, folder, run])
    with ckptstore.open(folder, run=run) as store:
        while (store.latest() or 0) < STEPS // 3:
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.5))
        child.kill()
        child.wait()
        return store.latest() or 0


def main(folder: str) -> None:
    """The whole story."""
    print("training without a disturbance …")
    train(folder, "straight")

    print("training again, killed on the way …", end=" ", flush=True)
    reached = train_and_be_killed(folder, "killed")
    print(f"SIGKILL after step {reached}; resuming from there")
    train(folder, "killed")

    with ckptstore.open(folder, run="killed") as store:
        show(store)


def show(store: ckptstore.Store) -> None:
    """What the store knows now."""
    differences = store.diff(f"straight@{STEPS}", STEPS).changes
    print(f"\ndifferences to the undisturbed run at step {STEPS}: {len(differences)}")

    for run in ("straight", "killed"):
        print(f"\nlog of run {run}, the newest:")
        with ckptstore.open(store.url, run=run) as other:
            for commit in other.log()[:3]:
                print(f"  step {commit.step:3d}  loss {commit.metadata['loss']:.4f}"
                      f"  {size(commit.logical_bytes)} logical, {size(commit.new_bytes)} new")  # fmt: skip

    print(f"\ndiff of steps {STEPS // 2} and {STEPS}:")
    diff = store.diff(STEPS // 2, STEPS, values=True)
    for change in diff.changes[:3]:
        if change.numbers is not None:
            print(f"  {change.path:30} max |Δ| {change.numbers.max_abs:.5f}  cosine {change.numbers.cosine:.5f}")
    print(f"  … {len(diff.changes)} leaves changed, {diff.unchanged} did not")

    rows = store.read(STEPS, "model/embedding.weight", index=slice(97, 100))
    print(f"\nembeddings of a, b and c, read alone: {tuple(rows.shape)}, mean {rows.mean():+.5f}")

    keep = ckptstore.KeepLast(2) | ckptstore.KeepBest("loss")
    with ckptstore.open(store.url, run="straight") as straight:
        straight.gc(keep, grace=0)
    plan = store.plan_gc(keep, grace=0)
    print(f"\ngc would drop steps {[commit.step for commit in plan.delete]}")
    report = plan.execute()
    print(f"gc dropped {len(report.deleted)} steps, freed {report.packs} packs, {size(report.freed_bytes)}")

    stats = store.stats()
    print(f"\n{stats.commits} commits: {size(stats.logical_bytes)} logical, {size(stats.stored_bytes)} stored")
    print("verified, every byte" if store.verify().ok else "DAMAGED")


def size(count: int) -> str:
    """Bytes as megabytes."""
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
