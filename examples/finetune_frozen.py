"""Fine-tune an adapter on a frozen backbone: every commit is whole, and costs a few percent of the first.

python examples/finetune_frozen.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from tiny_lm import VOCABULARY, TinyLM, batch, corpus, loss_of
from torch import Tensor, nn

import ckptstore

BASE_STEPS, STEPS, EVERY = 30, 30, 5


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


def train(model: nn.Module, store: ckptstore.Store, steps: int, parent: str | None = None) -> list[ckptstore.Commit]:
    """Train what requires grad, and commit everything every few steps."""
    text = corpus()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    commits: list[ckptstore.Commit] = []
    for step in range(1, steps + 1):
        loss = loss_of(model, *batch(text, step * 512))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            state = {"model": model, "optimizer": optimizer}
            start = parent if not commits else None
            commits.append(store.commit(state, step=step, parent=start, metadata={"loss": round(loss.item(), 4)}))
    return commits


def main(folder: str) -> None:
    """Train a base model, then fork a run from it."""
    torch.manual_seed(0)
    with ckptstore.open(folder, run="base") as store:
        first = train(TinyLM(), store, BASE_STEPS)[0]
    print(f"run base: the first commit stored {first.new_bytes / 1e6:.2f} MB")

    with ckptstore.open(folder, run="finetune") as store:
        backbone = TinyLM()
        store.checkout("base@latest", into={"model": backbone})
        commits = train(Adapted(backbone), store, STEPS, parent="base@latest")
        print(f"run finetune, forked from {commits[0].parent_ref}:")
        for commit in commits:
            share = commit.new_bytes / first.new_bytes
            print(f"  step {commit.step:3}  loss {commit.metadata['loss']:.4f}  {commit.logical_bytes / 1e6:.2f} MB"
                  f" logical, {commit.new_bytes / 1e3:.1f} kB new: {share:.1%} of the first commit")  # fmt: skip
            assert share < 0.05, "a frozen backbone was stored again"

        stats = store.stats()
    print(
        f"{stats.commits} commits: {stats.logical_bytes / 1e6:.1f} MB logical, {stats.stored_bytes / 1e6:.1f} MB stored"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
