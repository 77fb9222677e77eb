"""Train with Lightning: its checkpoints become commits, and after a SIGKILL a new start has the same bits.

python examples/lightning_train.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins import CheckpointIO
from tiny_lm import TinyLM, batch, corpus, loss_of
from torch.utils.data import DataLoader, Dataset

import ckptstore

EPOCHS, BATCHES, KILL_AT = 5, 8, 3


class StoreIO(CheckpointIO):
    """Where Lightning's checkpoints go and come from; "latest", a step or a tag may stand for a path, too."""

    def __init__(self, store: ckptstore.Store) -> None:
        self._store = store
        self._alone: dist.ProcessGroup | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Commit it in the background. Of several processes, Lightning lets the first one alone call this."""
        if self._alone is None and dist.is_initialized():
            self._alone = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
        notes = {"path": str(path)}
        self._store.commit_async(checkpoint, step=checkpoint["global_step"], metadata=notes, process_group=self._alone)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        """What was committed for that path."""
        state: dict[str, Any] = self._store.checkout(next(iter(self._steps(path)), str(path)))
        return state

    def remove_checkpoint(self, path: Any) -> None:
        """Delete the step, unless it is tagged, or gone already; gc frees its space."""
        for step in self._steps(path):
            with suppress(ckptstore.StepProtected, ckptstore.StepNotFound):
                self._store.delete(step)

    def teardown(self) -> None:
        """Wait for the last commit, and raise what failed."""
        self._store.close()

    def _steps(self, path: Any) -> list[int]:
        return [commit.step for commit in self._store.log() if commit.metadata.get("path") == str(path)]


class RandomState(Callback):
    """Puts the random states, which Lightning leaves out, into its checkpoints."""

    _loaded: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Those of torch, numpy and Python."""
        checkpoint["rng"] = ckptstore.RNGState().state_dict()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep them until the fit begins, and data loaders draw numbers."""
        self._loaded = checkpoint.get("rng")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set them."""
        if self._loaded is not None:
            ckptstore.RNGState().load_state_dict(self._loaded)


class Text(Dataset[Any]):
    """Batches of this text."""

    def __init__(self) -> None:
        self._text = corpus()

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, number: int) -> Any:
        return batch(self._text, number * 512)


class Training(LightningModule):
    """A little transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyLM()

    def training_step(self, pair: Any, number: int) -> torch.Tensor:
        """Of one batch."""
        return loss_of(self.model, *pair)

    def configure_optimizers(self) -> Any:
        """AdamW, with a rate that decays."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def on_train_epoch_start(self) -> None:
        """Print the epoch."""
        print(self.current_epoch, flush=True)


def train(folder: str, run: str) -> None:
    """Train from wherever the run stands, with a checkpoint after each epoch."""
    warnings.simplefilter("ignore")  # Lightning's, about cores that are idle
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)
    store = ckptstore.open(folder, run=run)
    keep = ModelCheckpoint(folder, save_top_k=-1, every_n_epochs=1)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        plugins=[StoreIO(store)],
        callbacks=[keep, RandomState()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = None if store.latest() is None else "latest"
    trainer.fit(Training(), DataLoader(Text(), batch_size=None, shuffle=True), ckpt_path=last)


def train_in_child(folder: str, run: str, *, kill_at: int | None = None) -> None:
    """Train in a process that is killed when it begins that epoch."""
    child = subprocess.Popen([sys.executable, __file__, folder, run], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == str(kill_at):
            child.kill()
    if child.wait() and kill_at is None:
        raise SystemExit(f"the training ended with status {child.returncode}")


def main(folder: str) -> None:
    """The whole story."""
    train_in_child(folder, "straight")
    train_in_child(folder, "killed", kill_at=KILL_AT)
    with ckptstore.open(folder, run="killed") as store:
        print(f"run killed: SIGKILL in epoch {KILL_AT}, last commit at step {store.latest()}")
    train_in_child(folder, "killed")
    with ckptstore.open(folder, run="killed") as store:
        changes = store.diff(f"straight@{EPOCHS * BATCHES}", EPOCHS * BATCHES).changes
        print(f"run killed: resumed; differences to the undisturbed run: {len(changes)}")
        print(f"steps: {store.steps()}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
