"""No later value ever enters an earlier step, though tensors are read where training keeps them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.optim import swa_utils

import ckptstore
from ckptstore import CommitInFlight, InvalidArgument, StateError, StepExists, StorageFull
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.claims import SessionClaims
from ckptstore.integrations.dcp import StoreReader
from ckptstore.opening import open_parts
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store
from ckptstore.testing.equality import assert_same
from tests.face.wrapping import PassingOn

WIDE = 40
PATHS = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Slowed(Intercepted):
    """A storage each of whose packs waits for the gate, then for `seconds`, and fails with `error` if that is set."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self.seconds: Callable[[], float] = lambda: 0.0
        self.error: Exception | None = None

    def intercept(self, verb: str, key: str, operation: Callable[[], Any]) -> Any:
        if verb == "put" and key.startswith("packs/"):
            self.reached.set()
            assert self.gate.wait(60)
            time.sleep(self.seconds())
            if self.error is not None:
                raise self.error
        return operation()


def slowed_store(place: Any) -> tuple[Store, Slowed]:
    parts = open_parts(
        place,
        catalog=None,
        create=True,
        read_only=False,
        digest="xxh3_128",
        chunk_bytes=4096,
        storage_options=None,
    )
    storage = Slowed(parts.storage)
    return Store(ChunkStore(storage, parts.catalog, parts.config), "main"), storage


@pytest.fixture
def slowed(tmp_path, monkeypatch):
    """A store of small packs and windows, and its storage."""
    monkeypatch.setattr("ckptstore.format.packs.TARGET_BYTES", 16384)
    monkeypatch.setattr("ckptstore.chunkstore.windows._LOANS", 16384)
    store, storage = slowed_store(tmp_path / "store")
    yield store, storage
    storage.gate.set()
    store._background._flight = None
    store.close()


class Training:
    """A model with buffers, an average of it, and one or two optimizers that share a tied weight."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], *, second: bool = False) -> None:
        torch.manual_seed(0)
        head = nn.Linear(WIDE, WIDE)
        self.model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), head)
        self.average = swa_utils.AveragedModel(self.model)
        parts = [self.model[:4], self.model[4:]] if second else [self.model]
        shared = [[], [self.model[0].weight]]
        self.optimizers = [
            make([*part.parameters(), *also]) for part, also in zip(parts, shared[: len(parts)], strict=True)
        ]
        self.frozen = torch.randn(3000)
        self.position = ckptstore.StateDict(steps=0)

    @property
    def app_state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "average": self.average,
            "optimizers": {"all": self.optimizers},
            "frozen": self.frozen,
            "rng": ckptstore.RNGState(),
            "position": self.position,
            "tied": self.model[4].weight,
        }

    def expected(self) -> Any:
        state = {
            name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in self.app_state.items()
        }
        state["optimizers"] = {"all": [optimizer.state_dict() for optimizer in self.optimizers]}
        return copy.deepcopy(state)

    def accumulate(self) -> None:
        loss = self.model(torch.randn(8, WIDE)).square().mean()
        loss.backward()

    def step(self, number: int = 0) -> None:
        optimizer = self.optimizers[number % len(self.optimizers)]
        optimizer.step(self._closure)  # type: ignore[arg-type]
        optimizer.zero_grad()
        self.average.update_parameters(self.model)
        self.position["steps"] += 1

    def change_by_hand(self) -> None:
        self.frozen.add_(1)
        for parameter in self.model.parameters():
            parameter.data.mul_(0.99)

    def _closure(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.randn(8, WIDE)).square().mean()
        loss.backward()
        return loss.detach()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "SGD, momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "AdamW": torch.optim.AdamW,
    "AdamW, foreach": partial(torch.optim.AdamW, foreach=True),
    "AdamW, fused": partial(torch.optim.AdamW, fused=True),
    "Adam, amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": partial(torch.optim.RMSprop, centered=True),
    "LBFGS": partial(torch.optim.LBFGS, max_iter=3, lr=0.1),
}


@pytest.mark.parametrize(("name", "second"), [*((name, False) for name in OPTIMIZERS), ("AdamW", True), ("SGD", True)])
def test_no_later_value_enters_an_earlier_step(slowed, name, second):
    store, storage = slowed
    chance = random.Random(name)
    storage.seconds = lambda: chance.random() * 0.01
    training = Training(OPTIMIZERS[name], second=second)
    states = {}
    for step in range(16):
        for _ in range(chance.randrange(3)):
            training.accumulate()
        if chance.random() < 0.6:
            states[step] = training.expected()
            handle = store.commit_async(training.app_state, step=step, just_in_time=chance.random() < 0.8)
            if chance.random() < 0.2:
                handle.wait_staged()
                training.change_by_hand()
        time.sleep(chance.random() * 0.01)
        training.step(step)
    store._background.land()
    assert store.steps() == list(states)
    for step, state in states.items():
        assert_same(store.checkout(step), state)


ACTIONS = st.lists(
    st.sampled_from(
        ["commit", "commit at once", "step", "step the second", "wait", "by hand", "accumulate", "resume", "pause"]
    ),
    max_size=30,
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(ACTIONS, st.sampled_from([0, 0.002, 0.01]))
def test_whatever_comes_after_whatever(slowed, actions, seconds):
    store, storage = slowed
    storage.seconds = lambda: seconds
    training = Training(torch.optim.AdamW, second=True)
    base = (store.latest() or 0) + 1
    states: dict[int, Any] = {}
    handle = None
    for number, action in enumerate(actions):
        if action.startswith("commit"):
            states[base + number] = training.expected()
            handle = store.commit_async(training.app_state, step=base + number, just_in_time=action == "commit")
        elif action.startswith("step"):
            training.step(1 if "second" in action else 0)
        elif action == "by hand":
            if handle:
                handle.wait_staged()
            training.change_by_hand()
        elif action == "accumulate":
            training.accumulate()
        elif action == "resume" and store.latest() is not None:
            store.checkout("latest", into={"model": training.model})
        elif action == "wait" and handle:
            handle.result()
        elif action == "pause":
            time.sleep(0.002)
    store._background.land()
    for step, state in states.items():
        assert_same(store.checkout(step), state)


# what returns at once, and what for


def large(count: int = 6) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    weights = [nn.Parameter(torch.randn(40, 50)) for _ in range(count)]
    optimizer = torch.optim.AdamW(weights)
    step(weights, optimizer)
    return weights, optimizer


def step(weights: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()


def test_a_step_waits_for_no_storage(slowed):
    store, storage = slowed
    weights, optimizer = large()
    storage.gate.clear()
    expected = copy.deepcopy({"w": weights, "optim": optimizer.state_dict()})
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    assert storage.reached.wait(60)
    for _ in range(3):
        step(weights, optimizer)
    assert not handle.done()
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0), expected)


@pytest.mark.parametrize("there", ["all of it", "half of it"])
def test_a_step_waits_for_no_catalog(slowed, monkeypatch, there):
    """Neither where leaves look as they did at the last commit, whether they did change or not."""
    store, _ = slowed
    weights = [nn.Parameter(torch.randn(500, 700)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    store.commit({"w": weights}, step=0)
    if there == "half of it":
        for weight in weights[::2]:
            weight.grad = torch.zeros_like(weight)
            weight.grad[::100, 100] = 1.0
        optimizer.step()
    expected = copy.deepcopy(weights)
    pin, gate, reached = SessionClaims.pin, threading.Event(), threading.Event()

    def waiting(self, digests):
        reached.set()
        assert gate.wait(60)
        return pin(self, digests)

    monkeypatch.setattr(SessionClaims, "pin", waiting)
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    assert reached.wait(60)
    stepping = threading.Thread(target=step, args=(weights, optimizer))
    stepping.start()
    stepping.join(20)
    waits = stepping.is_alive()
    gate.set()
    handle.result()
    stepping.join()
    assert not waits
    assert_same(store.checkout(1)["w"], expected)


@pytest.mark.parametrize(
    "change",
    [lambda w: w.mul_(2), lambda w: w.data.mul_(1.001), lambda w: w.detach().numpy().__iadd__(1)],
    ids=["seen by torch", "through its data", "through numpy"],
)
def test_what_is_changed_by_hand_is_reported(slowed, change):
    store, storage = slowed
    weights, optimizer = large()
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    with torch.no_grad():
        change(weights[4])
    storage.gate.set()
    with pytest.raises(StateError, match=r"'w/4' was changed.*wait_staged.*just_in_time=False"):
        handle.result()
    assert store.steps() == []
    store.commit_async({"w": weights, "optim": optimizer}, step=0).result()
    assert_same(store.checkout(0)["w"], weights)


@pytest.mark.parametrize("seen", [True, False])
def test_what_was_changed_by_hand_before_a_step_is_reported(slowed, seen):
    store, storage = slowed
    weights, optimizer = large()
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    assert storage.reached.wait(60)
    with torch.no_grad():
        (weights[0] if seen else weights[0].data).mul_(2)
    step(weights, optimizer)
    storage.gate.set()
    with pytest.raises(StateError, match="'w/0' was changed"):
        handle.result()


@pytest.mark.parametrize("bag", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_embedding_may_keep_to_its_norm(slowed, bag, tied):
    """Its call changes its weight in place."""
    store, storage = slowed
    table = nn.EmbeddingBag(300, WIDE, max_norm=0.1) if bag else nn.Embedding(300, WIDE, max_norm=0.1)
    model = nn.Sequential(table, nn.Linear(WIDE, 300))
    if tied:
        model[1].weight = table.weight
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.arange(300).view(20, 15)
    for number in range(3):
        expected = copy.deepcopy(model.state_dict())
        storage.gate.clear()
        handle = store.commit_async({"model": model, "optimizer": optimizer}, step=number)
        model(words).sum().backward()
        assert not model.state_dict()["0.weight"].equal(expected["0.weight"])
        storage.gate.set()
        handle.result()
        assert_same(store.checkout(number)["model"], expected)
        optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shared", ["weights", "moments"])
def test_another_optimizer_of_the_same_tensors_waits_too(slowed, fused, shared):
    """Torch does not count what its fused optimizers change."""
    store, storage = slowed
    weights, optimizer = large()
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    other: torch.optim.Optimizer = torch.optim.SGD(weights, lr=0.5, fused=fused)
    if shared == "moments":
        others = [nn.Parameter(weight.detach().clone()) for weight in weights]
        for twin in others:
            twin.grad = torch.full_like(twin, 3.0)
        other = torch.optim.AdamW(others, fused=fused)
        other.load_state_dict(other.state_dict() | {"state": optimizer.state_dict()["state"]})
    expected = copy.deepcopy({"w": list(weights), "state": optimizer.state_dict()["state"]})
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    other.step()
    storage.gate.set()
    handle.result()
    got = store.checkout(0)
    assert_same(got["w"], expected["w"])
    assert_same(got["optim"]["state"], expected["state"])


@pytest.mark.parametrize("how", ["wait_staged", "at once"])
def test_then_anybody_may_change_anything(slowed, how):
    store, storage = slowed
    weights, optimizer = large()
    storage.gate.clear()
    expected = copy.deepcopy(weights)
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0, just_in_time=how != "at once")
    if how == "wait_staged":
        handle.wait_staged()
    for weight in weights:
        weight.data.zero_()
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0)["w"], expected)


class Wrapped:
    """A stateful of the user's own around an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state)


def test_an_optimizer_that_wraps_another_is_seen(slowed):
    store, storage = slowed
    weights, optimizer = large()
    wrapping = PassingOn(optimizer)
    step(weights, wrapping)
    expected = copy.deepcopy({"w": list(weights), "optim": optimizer.state_dict()})
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": wrapping}, step=0)
    step(weights, wrapping)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0), expected)
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": wrapping}, step=1)
    with torch.no_grad():
        weights[-1].mul_(2)
    storage.gate.set()
    with pytest.raises(StateError, match="was changed, and not by its optimizer's step"):
        handle.result()


def test_an_optimizer_that_is_not_seen_is_copied_at_once(slowed):
    store, storage = slowed
    weights, optimizer = large()
    storage.gate.clear()
    expected = copy.deepcopy(optimizer.state_dict())
    handle = store.commit_async({"optim": Wrapped(optimizer), "w": weights}, step=0)
    step(weights, optimizer)
    weights[0].data.zero_()
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0)["optim"], expected)


def test_replaced_tensors_stay_as_they_were(slowed):
    store, storage = slowed
    weights, optimizer = large()
    model = nn.ParameterList(weights)
    expected = copy.deepcopy({"model": model.state_dict(), "optim": optimizer.state_dict()})
    storage.gate.clear()
    handle = store.commit_async({"model": model, "optim": optimizer}, step=0)
    fresh, other = large()
    optimizer.load_state_dict(other.state_dict())
    model.load_state_dict(nn.ParameterList(fresh).state_dict(), assign=True)
    for weight in weights:
        weight.data = torch.zeros(3)
    del fresh, other, weights
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0), expected)


def test_a_checkout_into_the_same_tensors_waits(slowed):
    store, storage = slowed
    weights, optimizer = large()
    store.commit({"w": weights}, step=0)
    first = copy.deepcopy(weights)
    step(weights, optimizer)
    second = copy.deepcopy(weights)
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    store.checkout(0, into={"w": weights})
    assert_same(weights, first)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(1)["w"], second)


def test_a_checkout_of_another_store_is_reported(slowed, tmp_path):
    store, storage = slowed
    weights, optimizer = large()
    with ckptstore.open(tmp_path / "other") as other:
        other.commit({"w": weights}, step=0)
        step(weights, optimizer)
        storage.gate.clear()
        handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
        other.checkout(0, into={"w": weights})
    storage.gate.set()
    with pytest.raises(StateError, match="was changed"):
        handle.result()


# optimizers are left as they were


def test_optimizers_can_be_copied_and_pickled_meanwhile(slowed):
    store, storage = slowed
    _, optimizer = large()
    storage.gate.clear()
    handle = store.commit_async({"optim": optimizer}, step=0)
    assert_same(copy.deepcopy(optimizer).state_dict(), optimizer.state_dict())
    assert_same(pickle.loads(pickle.dumps(optimizer)).state_dict(), optimizer.state_dict())
    storage.gate.set()
    handle.result()
    store.close()
    assert not optimizer._optimizer_step_pre_hooks


def test_hooks_do_not_pile_up(slowed):
    store, _ = slowed
    weights, optimizer = large()
    for number in range(4):
        handle = store.commit_async({"optim": optimizer}, step=number)
        step(weights, optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
    handle.result()


def test_hooks_of_dropped_stores_do_not_pile_up(tmp_path):
    weights, optimizer = large()
    for number in range(4):
        store = ckptstore.open(tmp_path / "store", run=f"run {number}")
        store.commit_async({"w": weights, "optim": optimizer}, step=0).result()
        del store
        gc.collect()
        step(weights, optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_hooks_of_dropped_stores_stay_where_others_may_run_them(tmp_path):
    """Another thread may be stepping that optimizer; torch goes through its hooks meanwhile."""
    (weights, optimizer), (others, other) = large(), large()
    store = ckptstore.open(tmp_path / "store")
    store.commit_async({"w": weights, "optim": optimizer}, step=0).result()
    del store
    gc.collect()
    with ckptstore.open(tmp_path / "store") as store:
        store.commit_async({"w": others, "optim": other}, step=1).result()
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        store.commit_async({"w": weights, "optim": optimizer}, step=2).result()
        assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert len(optimizer._optimizer_step_pre_hooks) == 0


class Around(torch.optim.Optimizer):
    """Has state of its own, and was never set up, as pytorch-optimizer's Lookahead is not."""

    param_groups: Any = ()

    def __init__(self, optimizer: torch.optim.Optimizer, hooks: Any, change: Callable[[torch.Tensor], Any]) -> None:
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = hooks(), hooks()
        self.optimizer, self.change, self.param_groups = optimizer, change, optimizer.param_groups
        weights = [parameter for group in self.param_groups for parameter in group["params"]]
        self.state: Any = {weight: {"slow": weight.detach().clone()} for weight in weights}

    def state_dict(self) -> Any:
        return {"inner": self.optimizer.state_dict(), "slow": [own["slow"] for own in self.state.values()]}

    def step(self, closure: Any = None) -> Any:
        self.optimizer.step(closure)
        for own in self.state.values():
            self.change(own["slow"])


def by_data(parameter: torch.Tensor) -> None:
    parameter.data.mul_(0.5)


@torch.no_grad()
def in_place(parameter: torch.Tensor) -> None:
    parameter.mul_(0.5)


@pytest.mark.parametrize("change", [by_data, in_place])
@pytest.mark.parametrize("hooks", [dict, OrderedDict])
def test_an_optimizer_that_runs_no_hooks_is_copied_at_once(slowed, hooks, change):
    store, storage = slowed
    weights, inner = large()
    optimizer = Around(inner, hooks, change)
    storage.gate.clear()
    expected = copy.deepcopy({"w": weights, "optim": optimizer.state_dict()})
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    step(weights, optimizer)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0), expected)


@pytest.mark.parametrize("change", [by_data, in_place])
def test_an_optimizer_whose_step_only_looks_as_if_it_ran_hooks_is_copied_at_once(slowed, change):
    store, storage = slowed
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch marks the step of a class that was used

    def halve(optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            change(parameter)

    class Halving(torch.optim.SGD):
        step: Any = wraps(torch.optim.SGD.step)(halve)

    weights, _ = large()
    optimizer = Halving(weights)
    storage.gate.clear()
    expected = copy.deepcopy({"w": weights})
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    optimizer.step()
    storage.gate.set()
    handle.result()
    assert_same({"w": store.checkout(0)["w"]}, expected)


@pytest.mark.parametrize("change", [by_data, in_place])
@pytest.mark.parametrize("first", ["global", "own, compiled"])
def test_hooks_that_were_there_before_may_change_parameters(tmp_path, first, change):
    """Torch runs hooks in order; a process of its own, since ours comes once."""
    script = f"""
import copy, sys, torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
torch.manual_seed(0)
weights = [torch.nn.Parameter(torch.randn(40, 50)) for _ in range(6)]
optimizer = torch.optim.AdamW(weights)
def change(optimizer, *_):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            {"parameter.data.mul_(0.5)" if change is by_data else "parameter.detach().mul_(0.5)"}
if {first == "global"}:
    register_optimizer_step_pre_hook(change)
else:
    optimizer.register_step_pre_hook(change)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
import ckptstore.chunkstore.windows, ckptstore.format.packs
ckptstore.format.packs.TARGET_BYTES = ckptstore.chunkstore.windows._LOANS = 16384
from tests.face.test_just_in_time import slowed_store, step
from ckptstore.testing.equality import assert_same
store, storage = slowed_store(sys.argv[1])
for number in range(3):
    step(weights, optimizer)
    storage.gate.clear()
    expected = copy.deepcopy(weights)
    handle = store.commit_async({{"w": weights, "optim": optimizer}}, step=number)
    step(weights, optimizer)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(number)["w"], expected)
print("same")
"""
    place = str(tmp_path / "store")
    done = subprocess.run([sys.executable, "-c", script, place], capture_output=True, text=True, check=False, env=PATHS)
    assert done.stdout == "same\n", done.stderr


def to_double(model: nn.Module) -> None:
    model.double()


def there_and_back(model: nn.Module) -> None:
    model.half().float()


def by_swapping(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


@pytest.mark.parametrize("replace", [to_double, there_and_back, by_swapping])
def test_an_optimizer_made_for_other_memory_of_the_same_parameters(slowed, replace):
    """Torch goes on counting changes of a parameter that gets other memory, though the old one stays as it is."""
    store, storage = slowed
    model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    expected = copy.deepcopy(model.state_dict())
    storage.gate.clear()
    handle = store.commit_async({"model": model, "optim": optimizer}, step=0)
    replace(model)
    step(list(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1))
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(0)["model"], expected)


def by_read(store: Store, weights: list[nn.Parameter]) -> None:
    for number, weight in enumerate(weights):
        store.read(0, f"w/n{number}", out=weight.data)


def by_dcp(store: Store, weights: list[nn.Parameter]) -> None:
    dcp_load(
        {"w": {f"n{number}": weight.data for number, weight in enumerate(weights)}},
        storage_reader=StoreReader(store, step=0),
    )


@pytest.mark.filterwarnings("ignore:.*torch.distributed:UserWarning")
@pytest.mark.parametrize("load", [by_read, by_dcp])
def test_loading_into_what_is_being_committed(slowed, load):
    store, storage = slowed
    weights, optimizer = large()
    store.commit({"w": {f"n{number}": weight for number, weight in enumerate(weights)}, "optim": optimizer}, step=0)
    step(weights, optimizer)
    expected = copy.deepcopy(weights)
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    load(store, weights)
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(1)["w"], expected)
    assert_same(weights, [*store.checkout(0)["w"].values()])


@pytest.mark.parametrize("seconds", [float("inf"), 10**400, 1e12, np.int64(60), np.float32(60)])
def test_waiting_for_ever(slowed, seconds):
    store, storage = slowed
    storage.gate.clear()
    handle = store.commit_async({"w": torch.ones(3000)}, step=0)
    threading.Timer(0.2, storage.gate.set).start()
    assert handle.result(seconds).step == 0
    with pytest.raises(InvalidArgument, match="timeout=nan: give seconds"):
        handle.result(float("nan"))
    with pytest.raises(InvalidArgument, match="cannot be pickled or copied"):
        copy.deepcopy(handle)


def test_a_commit_that_failed_holds_up_no_step(slowed):
    store, storage = slowed
    weights, optimizer = large()
    storage.error = StorageFull("no space")
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    for _ in range(3):
        step(weights, optimizer)
    with pytest.raises(StorageFull):
        handle.result()
    step(weights, optimizer)
    handle.wait_staged()
    storage.error = None
    store.commit_async({"w": weights, "optim": optimizer}, step=0).result()
    assert_same(store.checkout(0)["w"], weights)


def test_a_step_that_exists_with_another_state(slowed):
    store, _ = slowed
    weights, optimizer = large()
    store.commit({"w": weights}, step=0)
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=0)
    step(weights, optimizer)
    with pytest.raises(StepExists):
        handle.result()
    again = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    assert store.commit({"w": weights, "optim": optimizer}, step=1) == again.result()


# one at a time


def test_the_next_one_raises_if_asked_to(slowed):
    store, storage = slowed
    weights, _ = large()
    storage.gate.clear()
    handle = store.commit_async({"w": weights}, step=0)
    with pytest.raises(CommitInFlight, match=r"result\(\)"):
        store.commit_async({"w": weights}, step=1, when_busy="raise")
    storage.gate.set()
    handle.result()
    store.commit_async({"w": weights}, step=1, when_busy="raise").result()
    assert store.steps() == [0, 1]


def test_it_raises_while_another_thread_waits_too(slowed):
    store, storage = slowed
    storage.gate.clear()
    store.commit_async({"w": torch.randn(5000)}, step=0)
    waiting = threading.Thread(target=lambda: store.commit_async({"w": torch.randn(5000)}, step=1))
    waiting.start()
    waiting.join(0.1)
    with pytest.raises(CommitInFlight):
        store.commit_async({"w": 1}, step=2, when_busy="raise")
    storage.gate.set()
    waiting.join(60)
    store._background.land()
    assert store.steps() == [0, 1]


def test_another_wish_is_refused(store):
    with pytest.raises(InvalidArgument, match=r"when_busy='queue'.*wait, raise"):
        store.commit_async({"w": 1}, step=0, when_busy="queue")
    assert store.steps() == []
