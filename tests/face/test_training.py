"""Training that is stopped and resumed ends with the same bits, under every optimizer and scheduler of torch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

import ckptstore
from ckptstore.testing.equality import assert_same

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam": partial(torch.optim.Adam, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "ASGD": partial(torch.optim.ASGD, t0=2),
    "LBFGS": partial(torch.optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
    "Muon": torch.optim.Muon,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "SparseAdam": torch.optim.SparseAdam,
    "SGD, plain": torch.optim.SGD,
    "AdamW, foreach": partial(torch.optim.AdamW, foreach=True),
    "AdamW, fused": partial(torch.optim.AdamW, fused=True),
    "Adam, tensor lr": lambda parameters, lr: torch.optim.Adam(parameters, torch.tensor(lr), foreach=False),
}

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 3]),
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.05),
}


class Training:
    """A small model, its optimizer and all else that a step depends on."""

    def __init__(self, optimizer: str = "AdamW", scheduler: str = "StepLR", seed: int = 0) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = _model(optimizer)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters(), lr=0.01)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.position = ckptstore.StateDict(batches=0, seen=[])

    @property
    def app_state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optim": self.optimizer,
            "lr": self.scheduler,
            "rng": ckptstore.RNGState(),
            "position": self.position,
        }

    def train(self, steps: int) -> None:
        for _ in range(steps):
            draw = random.random() + np.random.rand()
            rows = torch.randint(64, (16,))
            loss = float(self.optimizer.step(partial(self._closure, rows, draw)))  # type: ignore[arg-type]
            self.scheduler.step(*([loss] if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau) else []))
            self.position["batches"] += 1
            self.position["seen"].append(int(rows[0]))

    def _closure(self, rows: torch.Tensor, draw: float) -> torch.Tensor:
        self.optimizer.zero_grad()
        out: torch.Tensor = self.model(rows)
        loss = (nn.functional.dropout(out, 0.2) - draw).square().mean()
        loss.backward()
        return loss.detach()


def _model(optimizer: str) -> nn.Module:
    table = nn.Embedding(64, 32, sparse=optimizer == "SparseAdam")
    if optimizer in {"SparseAdam", "Muon"}:
        return table
    return nn.Sequential(table, nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))


def state_of(training: Training) -> Any:
    return copy.deepcopy({name: part.state_dict() for name, part in training.app_state.items()})


def assert_resumes(store, make: Callable[..., Training]) -> None:
    training = make(seed=0)
    training.train(3)
    store.commit(training.app_state, step=3)
    at_commit = state_of(training)
    training.train(3)
    uninterrupted = state_of(training)

    fresh = make(seed=1)
    store.checkout(3, into=fresh.app_state)
    assert_same(state_of(fresh), at_commit)
    fresh.train(3)
    assert_same(state_of(fresh), uninterrupted)

    used = make(seed=2)
    used.train(5)
    store.checkout(3, into=used.app_state)
    used.train(3)
    assert_same(state_of(used), uninterrupted)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes(store, name):
    assert_resumes(store, partial(Training, name))
    assert_same(store.checkout(3)["optim"], store.read(3, "optim"))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_resumes(store, name):
    assert_resumes(store, partial(Training, "SGD", name))


def _classes(module: Any, base: type) -> set[str]:
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base))
    return {cls.__name__ for cls in found if cls is not base and not cls.__name__.startswith("_")}


def test_none_of_torchs_is_left_out():
    assert _classes(torch.optim, torch.optim.Optimizer) <= set(OPTIMIZERS)
    assert _classes(lr_scheduler, lr_scheduler.LRScheduler) | {"SWALR"} <= set(SCHEDULERS) | {"LRScheduler"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_comes_back_as_plain_state(store, name):
    training = Training(name)
    training.train(2)
    store.commit(training.app_state, step=2)
    state = store.checkout(2)
    assert_same({key: state[key] for key in ("optim", "model", "lr")}, _plain_parts(training))
    assert state["optim"]["state"] or name == "SGD, plain"


def _plain_parts(training: Training) -> Any:
    return {key: training.app_state[key].state_dict() for key in ("optim", "model", "lr")}


def test_a_grad_scaler_resumes(store):
    def scaler() -> Any:
        return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    used, fresh = scaler(), scaler()
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(3):
        used.scale(weight.square().sum()).backward()
        used.step(optimizer)
        used.update()
    store.commit({"scaler": used}, step=0)
    assert used.get_scale() == 2048.0
    store.checkout(0, into={"scaler": fresh})
    assert_same(fresh.state_dict(), used.state_dict())
    assert_same(store.checkout(0), {"scaler": used.state_dict()})


class Mastered(torch.optim.Optimizer):
    """Keeps what it needs of its half-precision parameters in other dtypes."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.float()
                state["count"] = torch.tensor(1 << 40)
                state["history"] = [torch.full((3,), 1 / 3, dtype=torch.float64)]
                state["deep"] = {"er": (torch.full((3,), 1 / 7),)}
            state["count"] += 1
            state["master"] -= self.param_groups[0]["lr"] * parameter.grad.float() * (1 + 1e-4)
            parameter.copy_(state["master"])


@pytest.mark.parametrize("steps_before", [0, 1], ids=["fresh", "used"])
def test_an_optimizers_state_keeps_its_dtypes(store, steps_before):
    def train(steps: int, weight: nn.Parameter, optimizer: Mastered) -> None:
        for _ in range(steps):
            weight.grad = weight.detach().cos()
            optimizer.step()

    weight = nn.Parameter(torch.randn(3000).bfloat16())
    optimizer = Mastered([weight])
    train(2, weight, optimizer)
    store.commit({"w": {"w": weight}, "optim": optimizer}, step=2)
    expected = copy.deepcopy(optimizer.state_dict())
    other = nn.Parameter(torch.randn(3000).bfloat16())
    again = Mastered([other])
    train(steps_before, other, again)
    store.checkout(2, into={"w": {"w": other}, "optim": again})
    assert_same(again.state_dict(), expected)
    train(3, weight, optimizer)
    train(3, other, again)
    assert_same(other, weight)
    assert_same(again.state_dict(), optimizer.state_dict())


def test_state_keeps_its_dtypes_in_an_optimizer_whose_step_somebody_wrapped(store):
    """As tools do that take times."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # torch marks the step of a class that was used

    class Timed(torch.optim.AdamW):
        step: Any = wraps(torch.optim.AdamW.step)(lambda self, closure=None: torch.optim.AdamW.step(self, closure))

    weight, other = (nn.Parameter(torch.zeros(300).bfloat16()) for _ in range(2))
    optimizer, again = Timed([weight]), Timed([other])
    moments = {"exp_avg": torch.randn(300), "exp_avg_sq": torch.rand(300)}
    optimizer.state[weight] = {"step": torch.tensor(3.0), **moments}
    store.commit({"optim": optimizer}, step=0)
    store.checkout(0, into={"optim": again})
    assert_same(again.state_dict(), optimizer.state_dict())


class Nested(torch.optim.SGD):
    """Has a state_dict of another form."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict(), "version": 2}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["inner"])


def test_an_optimizer_with_a_state_dict_of_its_own_resumes(store):
    first, second = (Nested([nn.Parameter(torch.ones(3000))], lr=lr, momentum=0.9) for lr in (0.1, 0.2))
    first.param_groups[0]["params"][0].grad = torch.ones(3000)
    first.step()
    store.commit({"optim": first}, step=0)
    store.checkout(0, into={"optim": second})
    assert_same(second.state_dict(), first.state_dict())


@pytest.mark.parametrize("kind", [Mastered, Nested])
def test_an_optimizers_hooks_have_their_say(store, kind):
    first, second = (kind([nn.Parameter(torch.ones(3).bfloat16())]) for _ in range(2))
    first.param_groups[0]["params"][0].grad = torch.ones(3).bfloat16()
    first.step()
    store.commit({"optim": first}, step=0)
    loaded: list[Any] = []

    def rename(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "state": {0: {"renamed": torch.full((3,), 1 / 3)}}}

    second.register_load_state_dict_pre_hook(rename)
    second.register_load_state_dict_post_hook(lambda optimizer: loaded.append(copy.deepcopy(optimizer.state)))
    store.checkout(0, into={"optim": second})
    assert_same(list(second.state.values()), [{"renamed": torch.full((3,), 1 / 3)}])
    assert_same([list(state.values()) for state in loaded], [[{"renamed": torch.full((3,), 1 / 3)}]])
    second.load_state_dict(first.state_dict())
    assert len(loaded) == 2


def test_an_optimizers_plain_values_may_have_become_tensors(store):
    def adam(lr: Any) -> torch.optim.Adam:
        made = torch.optim.Adam([nn.Parameter(torch.ones(3))], lr=lr, foreach=False)
        made.param_groups[0]["params"][0].grad = torch.ones(3)
        made.step()
        return made

    for step, (here, there) in enumerate([(0.1, torch.tensor(0.2)), (torch.tensor(0.1), 0.2)]):
        committed, live = adam(there), adam(here)
        store.commit({"optim": committed}, step=step)
        store.checkout(step, into={"optim": live})
        assert_same(live.state_dict(), committed.state_dict())


def test_a_model_averaged_over_steps_resumes(store):
    training, fresh = Training(seed=0), Training(seed=1)
    averaged, empty = swa_utils.AveragedModel(training.model), swa_utils.AveragedModel(fresh.model)
    for _ in range(2):
        training.train(1)
        averaged.update_parameters(training.model)
    store.commit({"averaged": averaged}, step=2)
    store.checkout(2, into={"averaged": empty})
    assert_same(empty.state_dict(), averaged.state_dict())
    assert int(empty.n_averaged) == 2


class Pair:
    """Has one parameter by two names, and keeps what it loads."""

    def __init__(self) -> None:
        parameter = nn.Parameter(torch.ones(2000), requires_grad=False)
        self.state = {"one": parameter, "other": parameter}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_object_gets_parameters_that_are_tied_as_they_were(store):
    store.commit({"pair": Pair()}, step=1000)
    pair = Pair()
    pair.state["one"].data.zero_()
    store.checkout(1000, into={"pair": pair})
    assert type(pair.state["one"]) is nn.Parameter and not pair.state["one"].requires_grad
    assert pair.state["one"] is pair.state["other"] and pair.state["one"].eq(1).all()
