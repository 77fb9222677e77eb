"""Train with Hugging Face's Trainer: commits in the background, and after a SIGKILL a new start with the same bits.

python examples/huggingface_trainer.py [FOLDER]      FOLDER keeps the store; by default it is temporary
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ckptstore
from ckptstore.integrations.safetensors import export_safetensors

STEPS, EVERY, KILL_AT = 30, 4, 18


class _Trained(Exception):
    """There is nothing left to do."""


class StoreCallback(TrainerCallback):
    """Commits every so many steps, and takes a training on from the run's newest commit."""

    def __init__(self, store: ckptstore.Store, every: int) -> None:
        self._store, self._every, self._resumes = store, every, False

    def train(self, trainer: Trainer) -> None:
        """In place of `trainer.train()`. Trainer reads the weights, and where in the data it is, from a folder."""
        trainer.add_callback(self)
        step = self._store.latest()
        if step is None:
            trainer.train()
            return
        self._resumes, trainer_state = True, {"trainer": ""}
        self._store.checkout(step, into=trainer_state)  # of several ranks, each one's own
        with tempfile.TemporaryDirectory() as folder:
            export_safetensors(self._store, step, Path(folder, "model.safetensors"), name="model")
            Path(folder, "trainer_state.json").write_text(trainer_state["trainer"])
            with suppress(_Trained):
                trainer.train(resume_from_checkpoint=folder)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take optimizer and schedule from the commit, too. Trainer would take one more step after the last one."""
        if self._resumes:
            self._store.checkout(state.global_step, into=_live(given))
            if state.global_step >= state.max_steps:
                raise _Trained

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The last step is logged by now, and the next batch drawn: so it is the moment for random states."""
        if self._resumes:
            self._store.checkout(state.global_step, into={"rng": ckptstore.RNGState()})
            self._resumes = False
        elif state.global_step and state.global_step % self._every == 0:
            self._commit(state, given)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Commit the last step."""
        if state.global_step not in self._store.steps():
            self._commit(state, given)

    def _commit(self, state: Any, given: dict[str, Any]) -> None:
        trainer_state = json.dumps(dataclasses.asdict(state))  # one value, whose history may grow
        app_state = _live(given) | {"rng": ckptstore.RNGState(), "trainer": trainer_state}
        self._store.commit_async(app_state, step=state.global_step)
        print(state.global_step, flush=True)


def _live(given: dict[str, Any]) -> dict[str, Any]:
    return {"model": given["model"], "optimizer": given["optimizer"], "scheduler": given["lr_scheduler"]}


def train(folder: str, run: str) -> None:
    """Train a little GPT-2 on noise, from wherever the run stands."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    words = torch.randint(64, (80, 16), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as unused, ckptstore.open(folder, run=run) as store:
        arguments = TrainingArguments(
            unused, max_steps=STEPS, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=5
        )
        data = [{"input_ids": row, "labels": row} for row in words]
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)
        StoreCallback(store, EVERY).train(trainer)


def train_in_child(folder: str, run: str, *, kill_at: int | None = None) -> None:
    """Train in a process that is killed when it tells of a commit of that step or of a later one."""
    child = subprocess.Popen([sys.executable, __file__, folder, run], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    killed = False
    for line in child.stdout:
        if kill_at is not None and line.strip().isdecimal() and int(line) >= kill_at:
            child.kill()
            killed = True
    if child.wait() and not killed:
        raise SystemExit(f"the training ended with status {child.returncode}")


def main(folder: str) -> None:
    """The whole story."""
    train_in_child(folder, "straight")
    train_in_child(folder, "killed", kill_at=KILL_AT)
    with ckptstore.open(folder, run="killed") as store:
        print(f"run killed: SIGKILL after step {KILL_AT}, last commit at step {store.latest()}")
    train_in_child(folder, "killed")
    with ckptstore.open(folder, run="killed") as store:
        changes = [change for change in store.diff(f"straight@{STEPS}", STEPS).changes if change.path != "trainer"]
        print(f"run killed: resumed; differences to the undisturbed run at step {STEPS}: {len(changes)}")
        print(f"steps: {store.steps()}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(sys.argv[1], sys.argv[2])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(str(Path(temporary, "store")))
