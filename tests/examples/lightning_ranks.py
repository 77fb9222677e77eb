"""Two processes that train with the example's StoreIO, which Lightning starts: FOLDER EPOCHS."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_train import RandomState, StoreIO, Text, Training
from torch.utils.data import DataLoader

import ckptstore


def train(folder, epochs):
    torch.set_num_threads(1)
    store = ckptstore.open(folder, run="ranks")
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        plugins=[StoreIO(store)],
        callbacks=[ModelCheckpoint(folder, save_top_k=2, monitor="epoch", mode="max"), RandomState()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Training(), DataLoader(Text(), batch_size=None), ckpt_path=None if store.latest() is None else "latest")
    sys.stdout.write(f"rank {trainer.global_rank}: {trainer.global_step}\n")


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
