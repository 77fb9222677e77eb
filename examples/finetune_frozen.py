"""Fine-tune an adapter on a frozen backbone: every commit is whole, and costs a few percent of the first.

python examples/finetune_frozen.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tiny_lm import VOCABULARY, TinyLM, batch, corpus, loss_of
from torch import Tensor, nn

import ckptstore

BASE_STEPS, STEPS, EVERY = 20, 30, 5


class Adapted(nn.Module):
    """A backbone that stays as it is, and a small correction of its logits that is trained."""

    def __init__(self, backbone: nn.Module, rank: int = 8) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(VOCABULARY, rank), nn.GELU(), nn.Linear(rank, VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [batch, time] to logits [batch, time, VOCABULARY]."""
        logits = self.backbone(tokens)
        corrected: Tensor = logits + self.adapter(logits)
        return corrected


def train(model: nn.Module, store: ckptstore.Store, steps: int, parent: str | None = None) -> None:
    """Train what requires grad from wherever the run stands, and commit everything every few steps."""
    text = corpus()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    app_state = {"model": model, "optimizer": optimizer, "rng": ckptstore.RNGState()}
    latest = store.latest()
    if latest is not None:
        store.checkout(latest, into=app_state)
    for step in range((latest or 0) + 1, steps + 1):
        loss = loss_of(model, *batch(text, step * 512))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            start = parent if store.latest() is None else None
            store.commit(app_state, step=step, metadata={"loss": round(loss.item(), 4)}, parent=start)


def fine_tune(folder: str, run: str) -> None:
    """Fork a run from the last commit of the base run, or go on with it."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with ckptstore.open(folder, run=run) as store:
        backbone = TinyLM()
        store.checkout("base@latest", into={"model": backbone})
        train(Adapted(backbone), store, STEPS, parent="base@latest")


def fine_tune_and_be_killed(folder: str, run: str) -> int:
    """Fine-tune in a child process, kill it on the way; the step it had reached."""
    child = subprocess.Popen([sys.executable, __file__, folder, run])
    with ckptstore.open(folder, run=run) as store:
        while (store.latest() or 0) < STEPS // 3:
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.3))
        child.kill()
        child.wait()
        return store.latest() or 0


def main(folder: str) -> None:
    """Train a base model, then fork two runs from it, of which one is killed and resumed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with ckptstore.open(folder, run="base") as store:
        train(TinyLM(), store, BASE_STEPS)
        first = store.log()[-1]
    print(f"run base: the first commit stored {first.new_bytes / 1e6:.2f} MB")

    fine_tune(folder, "straight")
    reached = fine_tune_and_be_killed(folder, "killed")
    print(f"run killed: SIGKILL after step {reached}; resuming from there")
    fine_tune(folder, "killed")

    with ckptstore.open(folder, run="straight") as store:
        differences = store.diff(STEPS, f"killed@{STEPS}").changes
        print(f"differences to the undisturbed run at step {STEPS}: {model_changes(differences)}")
        show(store, first)


def model_changes(changes: tuple[ckptstore.Change, ...]) -> int:
    """Leaves of model and optimizer that differ; Python's and numpy's generators were not seeded."""
    return sum(not change.path.startswith(("rng/python", "rng/numpy")) for change in changes)


def show(store: ckptstore.Store, first: ckptstore.Commit) -> None:
    """What each commit of the fine-tune cost."""
    log = store.log()[::-1]
    print(f"\nrun {store.run}, forked from {log[0].parent_ref}:")
    for commit in log:
        share = commit.new_bytes / first.new_bytes
        print(f"  step {commit.step:3}  loss {commit.metadata['loss']:.4f}  {commit.logical_bytes / 1e6:.2f} MB"
              f" logical, {commit.new_bytes / 1e3:.1f} kB new: {share:.1%} of the first")  # fmt: skip
        assert share < 0.05, "a frozen backbone was stored again"

    diff = store.diff(log[-2], log[-1])
    print(f"\nfrom step {log[-2].step} to {log[-1].step}, {len(diff.changes)} leaves changed, {diff.unchanged} did not")
    bias = store.read("latest", "model/adapter.2.bias", index=slice(0, 4))
    print(f"the first biases of the adapter, read alone: {[round(value, 4) for value in bias.tolist()]}")
    with ckptstore.open(store.url, run="killed") as killed:
        killed.gc(ckptstore.KeepLast(2), grace=0)
    report = store.gc(ckptstore.KeepLast(2), grace=0)
    print(f"gc dropped steps {list(report.deleted)}, freed {report.freed_bytes / 1e3:.1f} kB")
    stats = store.stats()
    logical, stored = stats.logical_bytes / 1e6, stats.stored_bytes / 1e6
    print(f"{stats.commits} commits: {logical:.1f} MB logical, {stored:.1f} MB stored")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        fine_tune(sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
