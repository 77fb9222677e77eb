"""Commits and checkouts around, and within, what torch compiles."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ckptstore.store import Store
from ckptstore.testing.equality import assert_same
from tests.face.test_interrupts import slowed
from tests.face.test_within_steps import FAST, Saving

__all__ = ["slowed"]


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch.compiler.reset()


def compiled(function: Callable[[], Any]) -> Callable[[], Any]:
    return torch.compile(function, backend="eager")


class Training:
    """A model whose halves have an optimizer each, saved at the end of a step or in the midst of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.model = nn.Sequential(*(nn.Linear(60, 60) for _ in range(4)))
        self.optimizers = [
            torch.optim.AdamW(part.parameters(), fused=True) for part in (self.model[:2], self.model[2:])
        ]
        self.count = 0

    @property
    def app_state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizers": dict(enumerate(self.optimizers))}

    def content(self) -> Any:
        return copy.deepcopy([self.model.state_dict(), *(optimizer.state_dict() for optimizer in self.optimizers)])

    def step(self) -> None:
        self.model(torch.ones(3, 60)).sum().backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def use(self, how: str) -> None:
        self.count += 1
        if how == "commit":
            self.store.commit(self.app_state, step=self.count)
        elif how == "commit_async":
            self.store.commit_async(self.app_state, step=self.count)
        elif how == "checkout":
            self.store.checkout(0, into=self.app_state)
        else:
            self.store.checkout(0)
            self.store.read(0, "model/0.weight")


@pytest.mark.parametrize("how", ["commit", "commit_async", "checkout", "read"])
def test_a_compiled_function_may_use_a_store(slowed, how):
    store, _ = slowed
    training = Training(store)
    training.step()
    store.commit(training.app_state, step=0)
    first, states = training.content(), {}

    def train() -> None:
        training.step()
        training.use(how)

    train = compiled(train)
    for step in range(1, 4):
        train()
        states[step] = training.content()
    if how == "checkout":
        assert_same(training.content(), first)
    elif how.startswith("commit"):
        store._background.land()
        for step, state in states.items():
            found = store.checkout(step)
            assert_same([found["model"], *found["optimizers"].values()], state)


def test_compiled_steps_of_several_optimizers_wait(slowed):
    store, storage = slowed
    training = Training(store)
    step = compiled(training.step)
    for number in range(4):
        storage.gate.clear()
        handle, expected = store.commit_async(training.app_state, step=number), training.content()
        threading.Timer(0.1, storage.gate.set).start()
        step()
        handle.result()
        found = store.checkout(number)
        assert_same([found["model"], *found["optimizers"].values()], expected)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("first", ["compiled", "saved"])
def test_a_step_that_is_compiled_waits_too(slowed, kind, first):
    store, storage = slowed
    saving = Saving(store, **kind)
    step = compiled(saving.optimizer.step)

    def train() -> None:
        for weight in saving.model.parameters():
            weight.grad = torch.randn_like(weight)
        step()

    if first == "compiled":
        train()
    for _ in range(3):
        storage.gate.clear()
        saving.save()
        threading.Timer(0.1, storage.gate.set).start()
        train()
        saving.handles[-1].result()
    saving.check(3)


def test_a_hook_of_a_compiled_step_may_save(slowed):
    store, _ = slowed
    saving = Saving(store, fused=True)
    for weight in saving.model.parameters():
        weight.grad = torch.randn_like(weight)
    saving.optimizer.register_step_pre_hook(saving.save)
    step = compiled(saving.optimizer.step)
    for _ in range(3):
        step()
    saving.check(3)


_IMPORTING = """
import sys, threading, time, types, torch, ckptstore
store = ckptstore.open(sys.argv[1])
model = torch.nn.Sequential(*(torch.nn.Linear(60, 60) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(optimizer.step, backend="eager")
stepped = threading.Event()
def add_modules(count=0):
    while not stepped.wait(1e-4):
        sys.modules[f"added{count}"] = types.ModuleType("added")
        count += 1
handle = store.commit_async({"model": model, "optimizer": optimizer}, step=0)
threading.Thread(target=add_modules).start()
for parameter in model.parameters():
    parameter.grad = torch.randn_like(parameter)
try:
    step()
finally:
    stepped.set()
print(handle.result().step)
"""


def test_a_step_is_compiled_while_others_import(tmp_path):
    """Torch goes through all modules for what looks at these, and fails when there come to be more."""
    command = [sys.executable, "-c", _IMPORTING, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == "0\n", done.stderr
