"""Commits from within an optimizer's step, and before one that does more than it did when the commit was asked for."""

from __future__ import annotations

import copy
import gc
import os
import signal
import time
import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ckptstore import CommitHandle
from ckptstore.store import Store
from ckptstore.testing.equality import assert_same
from tests.face.test_interrupts import handling, slowed
from tests.face.test_just_in_time import large, slowed_store, step

__all__ = ["slowed"]

FAST = [{"fused": True}, {"foreach": True}, {"fused": False, "foreach": False}]


class Saving:
    """Commits a model and its optimizer in the background, and knows what each step is to hold."""

    def __init__(self, store: Store, **kind: Any) -> None:
        self.store = store
        self.model = nn.Sequential(*(nn.Linear(60, 60) for _ in range(4)))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, **kind)
        self.expected: list[Any] = []
        self.handles: list[CommitHandle] = []

    def save(self, *_: Any) -> None:
        """As a hook, too."""
        self.expected.append(copy.deepcopy({"m": self.model.state_dict(), "o": self.optimizer.state_dict()}))
        state = {"m": self.model, "o": self.optimizer}
        self.handles.append(self.store.commit_async(state, step=len(self.handles)))

    def step(self) -> None:
        step(list(self.model.parameters()), self.optimizer)

    def check(self, count: int) -> None:
        assert len(self.handles) == count
        for number, (handle, expected) in enumerate(zip(self.handles, self.expected, strict=True)):
            handle.result()
            assert_same(self.store.checkout(number), expected)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_of_the_step_may_save(slowed, kind, when):
    store, storage = slowed
    saving = Saving(store, **kind)
    saving.step()
    getattr(saving.optimizer, f"register_step_{when}_hook")(saving.save)
    storage.seconds = lambda: 0.02
    for _ in range(4):
        saving.step()
    saving.check(4)


def test_a_hook_of_the_step_may_save_between_steps_that_others_saved(slowed):
    store, _ = slowed
    saving = Saving(store, fused=True)
    saving.optimizer.register_step_pre_hook(lambda *_: None)
    for number in range(6):
        hook = saving.optimizer.register_step_pre_hook(saving.save) if number % 2 else None
        saving.step()
        if hook is None:
            saving.save()
        else:
            hook.remove()
    saving.check(6)


def test_a_closure_may_save(slowed):
    store, storage = slowed
    saving = Saving(store)
    saving.optimizer = torch.optim.LBFGS(saving.model.parameters(), lr=0.1, max_iter=3)
    storage.gate.clear()

    def closure() -> Tensor:
        if not saving.handles:
            saving.save()
        saving.optimizer.zero_grad()
        loss: Tensor = saving.model(torch.randn(8, 60)).square().mean()
        loss.backward()
        return loss

    saving.optimizer.step(closure)
    storage.gate.set()
    saving.check(1)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("other_hook", [False, True])
def test_a_handler_may_save_in_the_background_within_a_step(slowed, monkeypatch, kind, other_hook):
    store, storage = slowed
    saving = Saving(store, **kind)
    saving.step()
    copying = type(store._background._own_stager()._buffers).copy
    signals = [None]

    def slow(buffers: Any, pairs: Any) -> None:
        if signals:
            signals.pop()
            os.kill(os.getpid(), signal.SIGUSR1)
            storage.gate.set()
            time.sleep(0.2)
        copying(buffers, pairs)

    storage.gate.clear()
    saving.save()
    if other_hook:
        saving.optimizer.register_step_pre_hook(lambda *_: None)
    monkeypatch.setattr("ckptstore.state.kept.KeptBuffers.copy", slow)
    with handling(saving.save):
        saving.step()
    saving.check(2)


def test_a_store_may_be_closed_within_a_step(slowed):
    store, _ = slowed
    saving = Saving(store)
    saving.save()
    closing = [saving.optimizer.register_step_pre_hook(lambda *_: store.close())]
    saving.optimizer.register_step_pre_hook(lambda *_: None)
    saving.step()
    closing.pop().remove()
    saving.step()
    saving.save()
    saving.step()
    saving.check(2)


@pytest.mark.parametrize("kind", FAST)
def test_weights_may_change_their_optimizer(slowed, kind):
    store, storage = slowed
    weights = [nn.Parameter(torch.randn(40, 50)) for _ in range(6)]
    one, other = (torch.optim.AdamW(some, lr=0.1, **kind) for some in (weights[:3], weights[3:]))
    for optimizer in (one, other):
        step(weights, optimizer)
    expected = copy.deepcopy(weights)
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "one": one, "other": other}, step=0)
    other.add_param_group({"params": one.param_groups.pop()["params"]})
    step(weights, other)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0)["w"], expected)


def test_a_hook_of_the_step_may_change_weights(slowed):
    store, storage = slowed
    saving = Saving(store)

    def clip(*_: Any) -> None:
        with torch.no_grad():
            for weight in saving.model.parameters():
                weight.clamp_(-0.01, 0.01)

    saving.optimizer.register_step_pre_hook(clip)
    storage.gate.clear()
    saving.save()
    saving.step()
    storage.gate.set()
    saving.check(1)


def test_nothing_is_kept_of_optimizers_that_are_gone(slowed):
    store, _ = slowed
    for number in range(5):
        weights, optimizer = large(1)
        store.commit_async({"o": optimizer}, step=number).result()
    assert len(store._background._own_stager()._hooks._handles) <= 2
    step(weights, optimizer)


@pytest.mark.parametrize("just_in_time", [False, True])
@pytest.mark.parametrize("kept", ["the store", "the handle"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_ended_keeps_nothing_of_the_state(tmp_path, just_in_time, kept, fails):
    store, storage = slowed_store(tmp_path / "store")
    weights, optimizer = large()
    if fails:
        storage.error = OSError("odd")
    handle: CommitHandle | None = store.commit_async({"o": optimizer, "w": weights}, step=0, just_in_time=just_in_time)
    assert handle is not None
    assert (handle.exception() is not None) == fails
    held = [weakref.ref(it) for it in (optimizer, *weights)]
    ends = partial(pytest.raises, OSError, match="odd") if fails else nullcontext
    if kept == "the handle":
        with ends():
            store.close()
    else:
        del handle
    del weights, optimizer
    gc.collect()
    assert [it() for it in held] == [None] * len(held)
    with ends() if kept == "the store" else nullcontext():
        store.close()
