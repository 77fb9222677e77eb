"""Checkout into live state: exact, in place, all or nothing."""

from __future__ import annotations

import copy
import itertools
import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.masked import masked_tensor

import ckptstore
from ckptstore import InvalidArgument, PathNotFound, PickleRefused, StateMismatch, UnknownType, UnsupportedLeaf
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import STATES, Colour, Frozen, Pair, Point, record
from tests.face.wrapping import PassingOn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 32))


def addresses(module: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (id(own), own.data_ptr()) for name, own in module.state_dict(keep_vars=True).items()}


class Counting:
    """A stateful that tells how often it was loaded, and with what."""

    def __init__(self, **state: Any) -> None:
        self.state: Any = state
        self.loaded: list[Any] = []

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.loaded.append(state)
        self.state = state


def test_a_module_without_memory_is_told_what_to_do(store):
    store.commit({"m": model()}, step=0)
    with torch.device("meta"):
        target = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 32))
    error = r"cannot store or fill 'm/0.weight': a tensor on the meta device; .*call its module's to_empty\(device=…\)"
    for act in (lambda: store.checkout(0, into={"m": target}), lambda: store.commit({"m": target}, step=1)):
        with pytest.raises(UnsupportedLeaf, match=error):
            act()
    target.to_empty(device="cpu")
    store.checkout(0, into={"m": target})
    assert_same(target.state_dict(), model().state_dict())


def test_a_lazy_module_is_told_what_to_do(store):
    store.commit({"a": {"m": model()}}, step=0)
    target = nn.Sequential(nn.LazyLinear(64), nn.LazyBatchNorm1d(), nn.Linear(64, 32))
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into={"a": {"m": target}})
    lazy = "a tensor in the commit, not initialised yet in the target: call the lazy module once first"
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert caught.value.different == tuple(f"a/m/{name}: {lazy}" for name in names)
    target(torch.zeros(2, 32))
    store.checkout(0, into={"a": {"m": target}})
    assert_same(target.state_dict(), model().state_dict())


# tensors, in place


@settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(STATES)
def test_every_state_goes_into_itself(store, state):
    """Into what a checkout gave is always possible; nothing changes then."""
    step = (store.latest() or 0) + 1
    store.commit(state, step=step)
    before, live = store.checkout(step), store.checkout(step)
    assert store.checkout(step, into=live) is live
    assert_same(live, before)


def test_a_module_keeps_its_tensors(store):
    committed, live = model(0), model(1)
    committed[1].running_mean += 1
    store.commit({"model": committed}, step=0)
    before = addresses(live)
    store.checkout(0, into={"model": live})
    assert addresses(live) == before
    assert_same(live.state_dict(), committed.state_dict())


LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[::2, 1::3],
    "permuted": lambda t: t.view(8, 8, 50).permute(2, 0, 1),
    "offset": lambda t: t[3:],
    "0-d": lambda t: t[5, 5],
    "empty": lambda t: t[:0],
    "parameter": nn.Parameter,
    "tracked": lambda t: t.requires_grad_(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float8_e5m2], ids=str)
def test_a_tensor_is_filled_where_it_is(store, layout, dtype):
    whole, around = noise(64, 50, seed=0).to(dtype), noise(64, 50, seed=1).to(dtype)
    target = LAYOUTS[layout](around)
    store.commit({"t": LAYOUTS[layout](whole.clone()).detach().clone()}, step=0)
    form = target.data_ptr(), target.stride(), type(target), target.requires_grad
    state = {"t": target}
    store.checkout(0, into=state)
    assert state["t"] is target
    assert (target.data_ptr(), target.stride(), type(target), target.requires_grad) == form
    expected = noise(64, 50, seed=1).to(dtype)
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    view = expected if layout in {"parameter", "tracked"} else LAYOUTS[layout](expected)
    view.view(words).copy_(LAYOUTS[layout](whole).detach().view(words))
    assert_same(around.detach(), expected)


def test_lazy_targets_are_filled(store):
    whole, around = noise(2000, dtype=torch.complex64), noise(2000, seed=1, dtype=torch.complex64)
    store.commit({"conj": whole, "neg": whole.imag.clone()}, step=0)
    store.checkout(0, into={"conj": around.conj()})
    assert_same(around, whole.conj().resolve_conj())
    other = noise(2000, seed=1, dtype=torch.complex64)
    store.checkout(0, into={"neg": other.conj().imag})
    assert torch.equal(other.imag, -whole.imag)


def test_what_the_target_is_stays(store):
    frozen, tracked = noise(2000).requires_grad_(), nn.Parameter(noise(2000))
    store.commit({"a": frozen, "b": tracked.detach()}, step=0)
    live: dict[str, Any] = {"a": torch.zeros(2000), "b": nn.Parameter(torch.zeros(2000), requires_grad=False)}
    a, b = live.values()
    store.checkout(0, into=live)
    assert live["a"] is a
    assert live["b"] is b
    assert not a.requires_grad
    assert isinstance(b, nn.Parameter)
    assert not b.requires_grad
    assert_same([a, b.data], [noise(2000), noise(2000)])


def test_numpy_arrays_are_filled_where_they_are(store):
    committed = np.random.default_rng(0).normal(size=(40, 30))
    around = np.zeros((80, 30))
    live: dict[str, Any] = {"plain": np.zeros((40, 30)), "view": around[::2], "back": np.zeros((40, 30))[::-1].T}
    arrays = list(live.values())
    store.commit({"plain": committed, "view": committed, "back": committed.T.copy()}, step=0)
    store.checkout(0, into=live)
    assert all(one is other for one, other in zip(live.values(), arrays, strict=True))
    assert np.array_equal(around[::2], committed)
    assert not around[1::2].any()
    assert np.array_equal(live["back"], committed.T)


def test_parts_of_sparse_and_quantised_tensors_are_filled(store):
    def parts(scale: float) -> dict[str, Any]:
        dense = torch.eye(60) * scale
        return {
            "coo": dense.to_sparse(),
            "csr": dense.to_sparse_csr(),
            "quantised": torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8),
            "channels": torch.quantize_per_channel(dense, torch.ones(60) * scale, torch.zeros(60), 0, torch.qint8),
        }

    store.commit(parts(3.0), step=0)
    live = parts(1.0)
    before = dict(live)
    store.checkout(0, into=live)
    assert_same(live, parts(3.0))
    assert all(live[name] is before[name] for name in live)


def test_a_sparse_buffer_of_a_module(store):
    def sparse(scale: float) -> Any:
        made = nn.Module()
        made.register_buffer("s", (torch.eye(60) * scale).to_sparse())
        return made

    live = sparse(1.0)
    store.commit({"m": sparse(3.0)}, step=0)
    store.checkout(0, into={"m": live})
    assert_same(live.state_dict(), sparse(3.0).state_dict())


def test_a_parameter_stays_one_where_its_module_is_filled_too(store):
    def state(model: nn.Linear) -> dict[str, Any]:
        array = np.ones(3)
        return {
            "model": model,
            "dict": {"w": model.weight, "bare": model.weight.detach()},
            "list": [model.weight],
            "noted": ckptstore.StateDict(w=model.weight),
            "arrays": [array, array[:]],
        }

    store.commit(state(nn.Linear(3, 2)), step=0)
    live = state(model := nn.Linear(3, 2))
    bare, view = live["dict"]["bare"], live["arrays"][1]
    store.checkout(0, into=live)
    assert live["dict"]["w"] is live["list"][0] is live["noted"]["w"] is model.weight
    assert live["dict"]["bare"] is bare and live["arrays"][1] is view
    assert_same(store.checkout(0, paths="model")["model"], model.state_dict())


def test_tied_weights_stay_tied(store):
    def tied(seed: int, *, tie: bool = True) -> Any:
        torch.manual_seed(seed)
        made = nn.ModuleDict({"emb": nn.Embedding(50, 30), "head": nn.Linear(30, 50, bias=False)})
        if tie:
            made["head"].weight = made["emb"].weight
        return made

    store.commit({"model": tied(0)}, step=0)
    store.commit({"model": tied(0, tie=False)}, step=1)
    live, loose = tied(1), tied(1, tie=False)
    store.checkout(0, into={"model": live})
    assert live["emb"].weight is live["head"].weight
    assert_same(live.state_dict(), tied(0).state_dict())
    store.checkout(0, into={"model": loose})
    assert loose["emb"].weight is not loose["head"].weight
    assert_same(loose["head"].weight, loose["emb"].weight)
    with pytest.raises(StateMismatch, match=r"head\.weight: tied to model/emb\.weight"):
        store.checkout(1, into={"model": live})


# plain state


def test_plain_state_is_replaced_in_its_parents(store):
    def plain(number: int) -> dict[str, Any]:
        tensor = noise(2000, seed=number)
        return {
            "dict": {"a": number, "t": tensor, "deep": {"er": [number, {"x": number}]}},
            "ordered": OrderedDict(a=number),
            "default": defaultdict(list, {"a": [number]}),
            "list": [number, tensor.clone(), {"a": number}],
            "plain list": [number, number],
            "deque": deque([{"a": number}], 3),
            "tuple": (number, tensor.clone(), [number]),
            "point": Point(number, tensor.clone()),
            "pair": [Pair({"a": number}, number)],
            "record": record({"a": number}, number),
            "frozen": Frozen([tensor.clone(), number]),
            "number": number,
            "text": f"{number} " * 1000,
            "colour": Colour.RED if number else Colour.BLUE,
            "none": None if number else 1,
            "set": {number},
        }

    live, committed = plain(0), plain(1)
    changeable = {name: id(live[name]) for name in live if not isinstance(live[name], int | str | set | Colour)}
    inner = id(live["dict"]["deep"]), id(live["dict"]["deep"]["er"]), id(live["list"][2]), id(live["tuple"][2])
    filled = live["dict"]["t"], live["tuple"][1], live["point"].y, live["frozen"].a[0]
    store.commit(committed, step=0)
    store.checkout(0, into=live)
    assert_same(live, plain(1))
    replaced = {name for name, was in changeable.items() if id(live[name]) != was}
    assert replaced <= {"tuple", "point", "none"}
    assert inner == (
        id(live["dict"]["deep"]),
        id(live["dict"]["deep"]["er"]),
        id(live["list"][2]),
        id(live["tuple"][2]),
    )
    again = live["dict"]["t"], live["tuple"][1], live["point"].y, live["frozen"].a[0]
    assert all(one is other for one, other in zip(filled, again, strict=True))


def test_generators_are_set_where_they_are(store):
    committed, live = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
    torch.rand(7, generator=committed)
    store.commit({"data": {"g": committed}, "g": [committed]}, step=0)
    state: dict[str, Any] = {"data": {"g": live}, "g": [torch.Generator()]}
    store.checkout(0, into=state)
    assert state["data"]["g"] is live
    assert torch.equal(torch.rand(9, generator=live), torch.rand(9, generator=committed))


def test_random_state_is_loaded_last(store):
    class Drawing(Counting):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            torch.rand(3)

    store.commit({"rng": ckptstore.RNGState(), "other": Drawing(x=1)}, step=0)
    expected = torch.rand(5)
    store.checkout(0, into={"rng": ckptstore.RNGState(), "other": Drawing(x=2)})
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("how", ["commit", "commit_async"])
@pytest.mark.parametrize("names", [*itertools.permutations(["first", "rng", "other"])], ids="-".join)
def test_random_state_is_asked_for_last(store, how, names):
    """Who gives its state may draw numbers for that, as torchdata's loaders do."""

    class Drawing(Counting):
        def state_dict(self) -> Any:
            random.random()
            torch.rand(3)
            return super().state_dict()

    objects: dict[str, Any] = {"rng": ckptstore.RNGState(), "other": {"deep": [Drawing(x=1)]}, "first": Drawing(x=2)}
    state = {name: objects[name] for name in names}
    made = getattr(store, how)(state, step=0)
    expected = random.random(), torch.rand(5)
    assert getattr(made, "result", lambda: made)().step == 0
    assert list(store.checkout(0)) == list(names)
    store.checkout(0, into=state)
    assert random.random() == expected[0] and torch.equal(torch.rand(5), expected[1])


@pytest.mark.parametrize("names", [("shuffle", "data"), ("data", "shuffle")], ids="-".join)
def test_a_generator_is_asked_and_set_last(store, names):
    """Loaders that are given one draw from it when they give their state, and when they take it."""
    generator = torch.Generator().manual_seed(3)

    class Drawing(Counting):
        def state_dict(self) -> Any:
            torch.rand(3, generator=generator)
            return super().state_dict()

        def load_state_dict(self, state: Any) -> None:
            torch.rand(7, generator=generator)
            super().load_state_dict(state)

    objects: dict[str, Any] = {"shuffle": {"of": generator}, "data": Drawing(x=1)}
    state = {name: objects[name] for name in names}
    store.commit(state, step=0)
    expected = torch.rand(5, generator=generator)
    store.checkout(0, into=state)
    assert state["shuffle"]["of"] is generator
    assert torch.equal(torch.rand(5, generator=generator), expected)


@pytest.mark.parametrize("key", ["rng_state", "torch"])
def test_random_state_that_others_saved(store, key):
    """torchsnapshot's RNGState holds one generator, and so may what is handmade."""
    store.commit({"rng": {key: torch.get_rng_state()}}, step=0)
    expected, python = torch.rand(5), random.getstate()
    store.checkout(0, into={"rng": ckptstore.RNGState()})
    assert torch.equal(torch.rand(5), expected)
    assert random.getstate() == python


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("other", "found"),
    [({"generator": torch.zeros(3)}, "generator"), (torch.zeros(3), "no such state"), (5, "no such")],
)
def test_random_state_of_which_the_commit_has_nothing(store, strict, other, found):
    store.commit({"w": torch.ones(3), "rng": other}, step=0)
    state: dict[str, Any] = {"w": torch.zeros(3), "rng": ckptstore.RNGState()}
    with pytest.raises(ckptstore.StateMismatch, match=f"rng: an RNGState, for which the commit has {found}"):
        store.checkout(0, into=state, strict=strict)
    assert not state["w"].any()
    store.checkout(0, into=state, strict=strict, paths="w")
    assert state["w"].all()


def test_statefuls_may_lie_anywhere(store):
    committed: dict[str, Any] = {
        "all": [model(0), {"m": model(1), "c": Counting(x=1)}],
        "state": ckptstore.StateDict(a=[1], b=noise(9)),
    }
    live: dict[str, Any] = {
        "all": [model(2), {"m": model(3), "c": Counting(x=2)}],
        "state": ckptstore.StateDict(a=[2], b=noise(9, seed=1)),
    }
    store.commit(committed, step=0)
    store.checkout(0, into=live)
    assert_same(live["all"][0].state_dict(), committed["all"][0].state_dict())
    assert_same(live["all"][1]["m"].state_dict(), committed["all"][1]["m"].state_dict())
    assert live["all"][1]["c"].state == {"x": 1}
    assert_same(live["state"].data, committed["state"].data)


# objects


def test_a_stateful_gets_the_commits_state_once(store):
    committed = Counting(history=[1, 2, {"deep": noise(2000)}], table={"a": 1, 2: "b"}, point=Point(1, 2))
    live = Counting(history=[], other=5)
    store.commit({"c": committed}, step=0)
    store.checkout(0, into={"c": live})
    assert len(live.loaded) == 1
    assert_same(live.state, committed.state)


def test_a_stateful_may_hold_other_ties(store):
    tensor = noise(2000)
    store.commit({"c": Counting(a=noise(2000), b=noise(2000, seed=1)), "d": Counting(a=tensor, b=tensor)}, step=0)
    live: dict[str, Any] = {
        "c": Counting(a=tensor, b=tensor),
        "d": Counting(a=noise(2000, seed=2), b=noise(2000, seed=3)),
    }
    store.checkout(0, into=live)
    assert_same(live["c"].state, {"a": noise(2000), "b": noise(2000, seed=1)})
    assert_same(list(live["d"].state.values()), [noise(2000), noise(2000)])


def test_what_stateful_objects_share_is_loaded_for_both(store):
    def shared(seed: int) -> dict[str, Any]:
        built = model(seed)
        return {"model": built, "ema": Counting(w=built[0].weight.detach()), "again": built}

    live = shared(1)
    store.commit(shared(0), step=0)
    store.checkout(0, into=live)
    assert_same(bits(live), bits(shared(0)))
    assert live["ema"].state["w"].data_ptr() == live["model"][0].weight.data_ptr()


class Eventful(nn.Module):
    """A module with everything that state_dict can do."""

    kept: torch.Tensor
    left: torch.Tensor

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(30, 40)
        self.register_buffer("kept", torch.zeros(2000))
        self.register_buffer("left", torch.zeros(2000), persistent=False)
        self.extra = extra
        self.events: list[Any] = []
        self.register_load_state_dict_pre_hook(lambda _, state, *rest: self.events.append(("pre", set(state))))
        self.register_load_state_dict_post_hook(lambda *_: self.events.append("post"))

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("extra", [{"seen": {"a": 1}, "t": noise(2000)}, noise(3000), "text", [1, (2,)]])
@pytest.mark.parametrize("before", [{}, {"seen": 2}, torch.empty(0), None])
@pytest.mark.parametrize("strict", [True, False])
def test_a_module_with_hooks_and_extra_state(store, extra, before, strict):
    committed, live = Eventful(extra), Eventful(before)
    committed.kept += 1
    committed.left += 1
    store.commit({"m": nn.Sequential(committed)}, step=0)
    store.checkout(0, into={"m": nn.Sequential(live)}, strict=strict)
    assert_same(live.state_dict(), committed.state_dict())
    assert_same(live.extra, extra)
    assert not live.left.any()
    names = {"0.inner.weight", "0.inner.bias", "0.kept", "0._extra_state"}
    assert live.events == [("pre", names), "post"]


def test_a_module_whose_state_dict_is_another(store):
    class Prefixed(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {f"v2.{name}": value.clone() for name, value in super().state_dict(*args, **kwargs).items()}

        def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            return super().load_state_dict(
                {name.removeprefix("v2."): value for name, value in state_dict.items()}, *args
            )

    committed, live = Prefixed(30, 40), Prefixed(30, 40)
    store.commit({"m": committed}, step=0)
    store.checkout(0, into={"m": live})
    assert_same(live.state_dict(), committed.state_dict())


class Wrapping(nn.Module):
    """Its state is that of what it wraps, and it is asked for in the plainest way."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = model(seed)

    def state_dict(self) -> Any:  # type: ignore[override]
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> Any:  # type: ignore[override]
        return self.inner.load_state_dict(state)


def wrapping_by_attribute(seed: int) -> Any:
    built = model(seed)
    given = built.state_dict()
    built.state_dict = lambda: given
    return built


@pytest.mark.parametrize("kind", [Wrapping, wrapping_by_attribute])
@pytest.mark.parametrize("strict", [True, False])
def test_a_module_whose_state_dict_takes_no_arguments(store, kind, strict):
    committed, live = ({"m": kind(seed), "data": ckptstore.StateDict(seed=seed)} for seed in (0, 1))
    store.commit(committed, step=0)
    store.checkout(0, into=live, strict=strict)
    assert_same(bits(live), bits(committed))


def test_a_parametrized_module(store):
    def made() -> Any:
        return nn.utils.parametrizations.weight_norm(nn.Linear(30, 40))

    committed, live = made(), made()
    store.commit({"m": committed}, step=0)
    store.checkout(0, into={"m": live})
    assert_same(live.weight.detach(), committed.weight.detach())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_accelerate_prepares(store, asynchronous):
    accelerator = accelerate.Accelerator(cpu=True)

    def prepared() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(50, 50)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        return {"model": model, "optimizer": optimizer, "schedule": schedule}

    def train(state: Any) -> None:
        state["model"](torch.ones(1, 50)).sum().backward()
        state["optimizer"].step()
        state["schedule"].step()

    committed, live = prepared(), prepared()
    train(committed)
    before = bits(committed)
    if asynchronous:
        handle = store.commit_async(committed, step=0)
        train(committed)
        handle.result()
    else:
        store.commit(committed, step=0)
    store.checkout(0, into=live)
    assert_same(bits(live), before)


@pytest.mark.parametrize("seen", [True, False])
def test_an_optimizer_that_wraps_another(store, seen):
    def made() -> Any:
        optimizer = PassingOn(torch.optim.Adam([nn.Parameter(torch.ones(50, dtype=torch.bfloat16))]))
        if not seen:
            optimizer.param_groups = list(optimizer.param_groups)
        return optimizer

    committed, live = stepped(made()), made()
    if seen:
        for moments in committed.state.values():
            moments["exp_avg"] = torch.rand(50)
    store.commit({"optim": committed}, step=0)
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict(), committed.state_dict())


class Slow(torch.optim.Optimizer):
    """Has hooks of its steps alone, as pytorch-optimizer's Lookahead, and weights of its own."""

    param_groups: Any = ()

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._patch_step_function()
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self.optimizer, self.param_groups, self.slow = optimizer, optimizer.param_groups, torch.zeros(50)

    def step(self, closure: Any = None) -> Any:
        self.optimizer.step(closure)
        self.slow += self.param_groups[0]["params"][0].detach()

    def state_dict(self) -> Any:
        return {"inner": self.optimizer.state_dict(), "slow": self.slow}

    def load_state_dict(self, state: Any) -> None:
        self.optimizer.load_state_dict(state["inner"])
        self.slow = state["slow"]


def test_an_optimizer_with_hooks_of_its_steps_alone(store):
    committed, live = (Slow(torch.optim.Adam([nn.Parameter(torch.ones(50))])) for _ in range(2))
    stepped(committed)
    store.commit({"optim": committed}, step=0)
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict(), committed.state_dict())


def test_an_optimizer_of_many_parameters(store):
    def adam(count: int) -> Any:
        weights = [nn.Parameter(torch.ones(1)) for _ in range(count)]
        for weight in weights[:3]:
            weight.grad = torch.ones(1)
        return torch.optim.Adam(weights)

    committed, live = adam(1500), adam(1500)
    committed.step()
    store.commit({"optim": committed}, step=0)
    assert store.manifest(0)["optim/param_groups/0/params"].chunks
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict(), committed.state_dict())
    with pytest.raises(StateMismatch, match=r"groups of \[1500\] parameters in the commit, of \[1499\]"):
        store.checkout(0, into={"optim": adam(1499)})


def with_group(kind: Any, **hyperparameters: Any) -> Any:
    return stepped(kind([nn.Parameter(torch.ones(3))], lr=0.1, **hyperparameters))


@pytest.mark.parametrize(
    ("kind", "lacking"), [(torch.optim.SGD, "dampening, momentum"), (torch.optim.NAdam, "momentum_decay")]
)
def test_another_kind_of_optimizer(store, kind, lacking):
    store.commit({"optim": with_group(torch.optim.Adam)}, step=0)
    live = with_group(kind)
    before = copy.deepcopy(live.state_dict())
    with pytest.raises(StateMismatch, match=f"optim: no {lacking} in the commit, which is of another kind"):
        store.checkout(0, into={"optim": live})
    assert_same(live.state_dict(), before)


def test_another_kind_of_optimizer_gets_the_state_when_asked_for(store):
    store.commit({"optim": with_group(torch.optim.Adam)}, step=0)
    live = with_group(torch.optim.SGD)
    store.checkout(0, into={"optim": live}, strict=False)
    assert "exp_avg" in live.state_dict()["state"][0]


class Sparing(torch.optim.SGD):
    """Has no hyperparameters in its state."""

    def state_dict(self) -> Any:
        state = super().state_dict()
        return state | {"param_groups": [{"params": group["params"]} for group in state["param_groups"]]}


def test_an_optimizer_that_keeps_its_hyperparameters_to_itself(store):
    committed, live = (with_group(Sparing, momentum=momentum) for momentum in (0.5, 0.9))
    store.commit({"optim": committed}, step=0)
    given: list[Any] = []
    live.load_state_dict = given.append
    store.checkout(0, into={"optim": live})
    assert_same(given, [committed.state_dict()])


ELEMENTWISE = {
    "Adadelta": torch.optim.Adadelta,
    "Adagrad": torch.optim.Adagrad,
    "Adam": partial(torch.optim.Adam, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "Muon": torch.optim.Muon,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "SparseAdam": torch.optim.SparseAdam,
}


def over(kind: Any, rows: int) -> Any:
    """A fresh optimizer."""
    return kind([nn.Parameter(torch.ones(rows, 4))], lr=0.1)


def sparsely_stepped(optimizer: Any) -> Any:
    for weight in optimizer.param_groups[0]["params"]:
        weight.grad = weight.detach().to_sparse(1)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("wrap", [PassingOn, lambda optimizer: optimizer])
def test_state_of_other_shapes_than_the_parameters_of_a_fresh_optimizer(store, name, wrap):
    kind = ELEMENTWISE[name]
    committed = (sparsely_stepped if name == "SparseAdam" else stepped)(over(kind, 10))
    store.commit({"o": committed}, step=0)
    wanted, live = over(kind, 10), wrap(over(kind, 20))
    before = copy.deepcopy(live.state_dict())
    with pytest.raises(StateMismatch, match=r"o/state/0/\w+: .*\[10, 4\] in the commit, .*\[20, 4\]"):
        store.checkout(0, into={"o": live})
    assert_same(live.state_dict(), before)
    store.checkout(0, into={"o": wrap(wanted)})
    assert_same(wanted.state_dict(), committed.state_dict())


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.LBFGS])
def test_a_fresh_optimizer_whose_state_has_other_shapes_than_its_parameters(store, kind):
    committed, live = over(kind, 10), over(kind, 10)
    committed.param_groups[0]["params"][0].grad = torch.ones(10, 4)
    committed.step(lambda: torch.ones(())) if kind is torch.optim.LBFGS else committed.step()
    store.commit({"o": committed}, step=0)
    store.checkout(0, into={"o": live})
    assert_same(live.state_dict(), committed.state_dict())


class Rowwise(torch.optim.Adam):
    """Knows what to do with moments of other shapes."""


def test_state_that_torchs_optimizers_do_not_make_may_have_any_shape(store):
    committed, live = stepped(over(torch.optim.Adam, 10)), over(torch.optim.Adam, 10)
    (moments,) = committed.state.values()
    moments["mine"] = torch.ones(3)
    store.commit({"o": committed}, step=0)
    store.checkout(0, into={"o": live})
    assert_same(live.state_dict(), committed.state_dict())
    other = over(Rowwise, 20)
    store.checkout(0, into={"o": other})
    assert_same(other.state_dict()["state"], committed.state_dict()["state"])


def test_a_hook_that_brings_state_into_shape(store):
    kind = partial(torch.optim.SGD, momentum=0.9)
    committed, live = stepped(over(kind, 10)), over(kind, 20)
    (moments,) = committed.state.values()
    moments["momentum_buffer"] = torch.ones(10, 4)

    def grow(_: Any, state: Any) -> Any:
        moments = {"momentum_buffer": torch.cat([state["state"][0]["momentum_buffer"]] * 2)}
        return state | {"state": {0: moments}}

    live.register_load_state_dict_pre_hook(grow)
    store.commit({"o": committed}, step=0)
    store.checkout(0, into={"o": live})
    assert_same(live.state_dict()["state"], {0: {"momentum_buffer": torch.ones(20, 4)}})


class Ranked(torch.optim.SGD):
    """Not torch's own, so that the shapes of its state are its own affair."""


def test_an_optimizer_that_changes_the_shape_of_its_state(store):
    kind = partial(Ranked, momentum=0.9)
    committed = stepped(over(kind, 10))
    (moments,) = committed.state.values()
    moments["momentum_buffer"] = torch.ones(3, 4)
    store.commit({"o": committed}, step=0)
    with pytest.raises(StateMismatch, match="as it trains, a new one takes the commit's"):
        store.checkout(0, into={"o": stepped(over(kind, 10))})
    new = over(kind, 10)
    store.checkout(0, into={"o": new})
    assert_same(new.state_dict()["state"], committed.state_dict()["state"])


def test_an_optimizer_of_a_lazy_module(store):
    committed = stepped(torch.optim.Adam(nn.Linear(3, 4).parameters()))
    live = torch.optim.Adam(nn.LazyLinear(4).parameters())
    store.commit({"o": committed}, step=0)
    store.checkout(0, into={"o": live})
    assert_same(live.state_dict()["state"], committed.state_dict()["state"])


def test_an_optimizer_of_an_older_torch_with_less_switches(store):
    committed, live = with_group(torch.optim.Adam, amsgrad=True), with_group(torch.optim.AdamW)
    state = committed.state_dict()
    for switch in ("foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"):
        del state["param_groups"][0][switch]
    state["param_groups"][0]["initial_lr"] = 0.1
    store.commit({"optim": state}, step=0)
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict()["state"], committed.state_dict()["state"])


def test_a_plain_dict_has_no_place_for_the_state_of_an_optimizer(store):
    store.commit({"optim": with_group(torch.optim.Adam).state_dict()}, step=0)
    fresh = torch.optim.Adam([nn.Parameter(torch.ones(3))]).state_dict()
    with pytest.raises(StateMismatch, match=r"no state before its first step: give it itself, not its state_dict\(\)"):
        store.checkout(0, into={"optim": fresh})


def named(order: str, *, prefix: str = "", split: int = 0) -> Any:
    """An optimizer that knows its parameters' names, in one group or in two."""
    weights = [(prefix + name, nn.Parameter(torch.full((2,), float(ord(name))))) for name in order]
    groups = [group for group in (weights[:split], weights[split:]) if group]
    return torch.optim.Adam([{"params": group} for group in groups])


def stepped(optimizer: Any) -> Any:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = weight.detach().clone()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("split", "number"), [(0, 1), (1, 1), (3, 1)])
def test_an_optimizer_whose_parameters_have_another_order(store, split, number):
    """Their moments would go to others, of the same shape."""
    store.commit({"optim": stepped(named("abcd", split=split))}, step=0)
    live, fresh = stepped(named("acbd", split=split)), named("acbd", split=split)
    before = live.state_dict()
    message = rf"optim: its parameters .* order .*: number {number} is 'b', and 'c' here; make it in that order, or"
    for paths in (None, "optim", "optim/state/0/exp_avg", "optim/param_groups", "optim/**/param_names"):
        with pytest.raises(StateMismatch, match=message):
            store.checkout(0, into={"optim": live}, paths=paths, strict=False)
    with pytest.raises(StateMismatch, match=message):
        store.checkout(0, into={"optim": fresh})
    store.checkout(0, into={"optim": live}, paths="optim/**/lr")
    assert_same(live.state_dict(), before)
    assert not fresh.state


@pytest.mark.parametrize("split", [0, 1])
def test_parameters_that_dcp_named_have_another_order(store, split):
    """As `get_state_dict` does for an optimizer that does not know their names itself."""
    optimizer = stepped(named("abcd", split=split))
    names = [name for group in optimizer.param_groups for name in group.pop("param_names")]
    state = optimizer.state_dict()
    there = {
        "state": {name: state["state"][number] for number, name in enumerate(names)},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]
        ],
    }
    store.commit({"optim": there}, step=0)
    live = named("acbd", split=split)
    for paths in (None, "optim"):
        with pytest.raises(StateMismatch, match="number 1 is 'b', and 'c' here"):
            store.checkout(0, into={"optim": live}, paths=paths)
    assert not live.state
    same = named("abcd", split=split)
    store.checkout(0, into={"optim": same})
    assert_same(list(same.state_dict()["state"].values()), list(state["state"].values()))


class ByName(torch.optim.Adam):
    def load_state_dict(self, state_dict: Any) -> None:
        there = [name for group in state_dict["param_groups"] for name in group["param_names"]]
        here = [name for group in self.param_groups for name in group["param_names"]]
        state = {place: state_dict["state"][there.index(name)] for place, name in enumerate(here)}
        super().load_state_dict({"state": state, "param_groups": self.state_dict()["param_groups"]})


def test_an_optimizer_that_brings_its_parameters_into_order(store):
    store.commit({"optim": stepped(named("abcd"))}, step=0)
    live = ByName([(name, nn.Parameter(torch.full((2,), float(ord(name))))) for name in "dcab"])
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict()["state"], stepped(named("dcab")).state_dict()["state"])


def test_a_hook_that_loads_an_optimizer_by_name(store):
    """As torch's documentation of `register_load_state_dict_pre_hook` has it."""

    def by_name(optimizer, state_dict):
        (given,), (own,) = state_dict["param_groups"], optimizer.param_groups
        there = dict(zip(given["param_names"], given["params"], strict=True))
        state = {place: state_dict["state"][there[name]] for place, name in enumerate(own["param_names"])}
        return {"state": state, "param_groups": [{**given, "param_names": own["param_names"]}]}

    store.commit({"optim": stepped(named("abcd"))}, step=0)
    live = named("dcab")
    live.register_load_state_dict_pre_hook(by_name)
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict()["state"], stepped(named("dcab")).state_dict()["state"])


def test_names_that_say_nothing_about_the_order(store):
    def unnamed():
        return torch.optim.Adam([nn.Parameter(torch.ones(2)) for _ in "abcd"])

    committed = stepped(named("abcd"))
    store.commit({"optim": committed}, step=0)
    for live in (named("abcd", prefix="module."), unnamed(), named("abce"), named("abcd")):
        store.checkout(0, into={"optim": live})
        assert_same(live.state_dict()["state"], committed.state_dict()["state"])
    store.commit({"optim": stepped(unnamed())}, step=1)
    store.checkout(1, into={"optim": named("dcba")})


# parts


def app_state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    built = model(seed)
    optimizer = torch.optim.AdamW(built.parameters(), lr=0.1 / (seed + 1))
    built(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    return {
        "model": built,
        "optim": optimizer,
        "plain": {"a": noise(2000, seed=seed), "b": seed, "list": [{"x": seed}, {"x": seed}]},
        "counter": Counting(x=seed, y=seed),
    }


def bits(state: dict[str, Any]) -> Any:
    return copy.deepcopy(
        {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in state.items()}
    )


@pytest.fixture
def committed(store):
    state = app_state(0)
    store.commit(state, step=0)
    return state


@pytest.mark.parametrize("names", [["model"], ["optim", "plain"], ["counter"], []])
def test_only_the_targets_names_are_loaded(store, committed, names):
    live = app_state(1)
    before = bits(live)
    store.checkout(0, into={name: live[name] for name in names})
    expected = {name: (bits(committed) if name in names else before)[name] for name in live}
    assert_same(bits(live), expected)


def test_paths_choose_leaves(store, committed):
    live = app_state(1)
    expected = bits(live)
    store.checkout(0, into=live, paths=["model/0.*", "plain/list/1", "optim/state/*/exp_avg", "counter/x"])
    theirs = bits(committed)
    for name in ("0.weight", "0.bias"):
        expected["model"][name] = theirs["model"][name]
    expected["plain"]["list"][1] = theirs["plain"]["list"][1]
    for number in expected["optim"]["state"]:
        expected["optim"]["state"][number]["exp_avg"] = theirs["optim"]["state"][number]["exp_avg"]
    expected["counter"]["x"] = theirs["counter"]["x"]
    assert_same(bits(live), expected)


@pytest.mark.parametrize("paths", ["optim", "optim/**", ["model", "optim/*/**", "plain/b"], "**"])
def test_paths_may_choose_a_whole_optimizer(store, committed, paths):
    live = app_state(1)
    live["optim"] = torch.optim.AdamW(live["model"].parameters())
    store.checkout(0, into=live, paths=paths)
    assert_same(live["optim"].state_dict(), committed["optim"].state_dict())


class Replay:
    """Begins with what it has when it loads."""

    def __init__(self) -> None:
        self.buffer, self.seen, self.parts = torch.zeros(2000), np.zeros(2000), [torch.zeros(2000)]

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "seen": self.seen, "parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for own, loaded in zip(self.arrays(), [state["buffer"], state["seen"], *state["parts"]], strict=True):
            own[:] = 0
            own[:] = loaded

    def arrays(self) -> list[Any]:
        return [self.buffer, self.seen, *self.parts]


def test_an_object_that_resets_itself_first(store):
    replay, other = Replay(), Replay()
    for number, own in enumerate(replay.arrays()):
        own[:] = number + 1
    store.commit({"replay": replay}, step=1000)
    store.checkout(1000, into={"replay": other})
    assert_same(other.state_dict(), replay.state_dict())


def test_what_is_in_a_state_dict_is_filled_where_it_is(store):
    generator = torch.Generator().manual_seed(1)
    state = ckptstore.StateDict(generator=generator, seen=[1, 2], inner={"k": 1})
    kept = dict(state)
    store.commit({"data": state}, step=1000)
    wanted = torch.rand(3, generator=generator)
    state["seen"].append(3)
    state["inner"]["k"] = 2
    store.checkout(1000, into={"data": state})
    assert all(state[key] is value for key, value in kept.items())
    assert (state["seen"], state["inner"]) == ([1, 2], {"k": 1})
    assert torch.rand(3, generator=generator).equal(wanted)


def test_a_state_dict_has_the_commits_keys_also_of_what_is_empty(store):
    store.commit({"data": ckptstore.StateDict(a=1, empty={})}, step=1000)
    state = ckptstore.StateDict(a=0, more={})
    store.checkout(1000, into={"data": state})
    assert dict(state) == {"a": 1, "empty": {}}


KEYS = [("a", 1), Colour.RED, torch.float32, 1 << 70, None, "é", 2.5, b"k"]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_state_dict_may_have_keys_of_any_kind(store, key):
    def state(number: int, **more: Any) -> Any:
        made: Any = ckptstore.StateDict(t=torch.full((3,), float(number)), **more)
        made[key], made[key,] = number, {"x": number}
        return made

    committed, live = state(3), state(0, more={})
    committed[((key,),)] = {}
    store.commit({"data": committed}, step=0)
    store.checkout(0, into={"data": live})
    assert_same(live.data, committed.data)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_random_state_among_keys_of_any_kind(store, key):
    store.commit({"rng": {key: 1, "torch": torch.get_rng_state()}}, step=0)
    expected = torch.rand(5)
    store.checkout(0, into={"rng": ckptstore.RNGState()})
    assert torch.equal(torch.rand(5), expected)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_group_of_parameters_may_have_keys_of_any_kind(store, key):
    committed, live = with_group(torch.optim.Adam), with_group(torch.optim.Adam)
    for optimizer, value in ((committed, 1), (live, 2)):
        optimizer.param_groups[0][key] = value
    store.commit({"optim": committed}, step=0)
    store.checkout(0, into={"optim": live})
    assert_same(live.state_dict(), committed.state_dict())
    with pytest.raises(StateMismatch, match="no dampening, momentum in the commit"):
        store.checkout(0, into={"optim": with_group(torch.optim.SGD)})


def test_a_module_without_anything_is_no_mistake(store, committed):
    live = app_state(1)
    store.checkout(0, into={"model": torch.nn.Identity(), "plain": live["plain"]}, strict=False)
    assert_same(live["plain"], committed["plain"])


@pytest.mark.parametrize("strict", [True, False])
def test_what_cannot_be_meant_is_reported_however_strict(store, committed, strict):
    live = app_state(1)
    before = bits(live)
    with pytest.raises(StateMismatch, match=r"changed\n  different:\n    modle: the commit has .*model") as caught:
        store.checkout(0, into={"modle": live["model"]}, strict=strict)
    assert "strict=False" not in str(caught.value)
    with pytest.raises(StateMismatch, match=r"paths=\['plain/\*\*'\]: selects nothing of model"):
        store.checkout(0, into={"model": live["model"]}, paths="plain/**", strict=strict)
    assert_same(bits(live), before)


def test_a_module_that_has_nothing_of_the_commits_is_reported(store, committed):
    wrapped = {"model": torch.nn.ModuleDict({"inner": app_state(1)["model"]})}
    before = bits(wrapped)
    with pytest.raises(StateMismatch, match="model: has nothing of the commit's, such as model/") as caught:
        store.checkout(0, into=wrapped, strict=False)
    assert "give strict=False" not in str(caught.value)
    assert_same(bits(wrapped), before)


def test_an_empty_dict_stays_empty(store, committed):
    assert store.checkout(0, into={"model": {}}, strict=False) == {"model": {}}


def test_paths_of_names_that_are_not_wanted(store, committed):
    live = app_state(1)
    before = bits(live)
    store.checkout(0, into={"model": live["model"]}, paths=["plain/**", "model/1.running_mean"])
    before["model"]["1.running_mean"] = bits(committed)["model"]["1.running_mean"]
    assert_same(bits(live), before)


def freed() -> torch.Tensor:
    made = torch.ones(1000)
    made.untyped_storage().resize_(40)
    return made


BESIDE: dict[str, Callable[[], Any]] = {
    "a lock": threading.Lock,
    "locks": lambda: [{"x": (threading.Lock(), 1)}],
    "an object as a key": lambda: {threading.Lock(): 1},
    "no memory": lambda: nn.Linear(2, 2, device="meta"),
    "no more memory": freed,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "an optimizer without memory": lambda: torch.optim.SGD(nn.Linear(2, 2, device="meta").parameters()),
    "a factory": lambda: defaultdict(lambda: 0),
    "objects in an array": lambda: np.array([None]),
    "a quantised tensor without a scale": lambda: torch.empty(3, dtype=torch.qint8),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_what_is_not_selected_may_be_anything(store, committed, beside):
    odd = BESIDE[beside]()
    live: dict[str, Any] = {"model": model(1), "plain": app_state(1)["plain"], "odd": odd, "again": [odd]}
    for paths in ("model", ["model/0.*", "plain/list"]):
        store.checkout(0, into=live, paths=paths)
    assert_same(live["model"].state_dict(), committed["model"].state_dict())
    assert live["plain"]["list"] == committed["plain"]["list"]
    assert live["odd"] is odd
    assert live["again"] == [odd]
    with pytest.raises((StateMismatch, UnsupportedLeaf), match=r"\b(odd|again)\b"):
        store.checkout(0, into=live)


def test_parts_of_a_module_of_which_others_have_no_memory(store, committed):
    live = model(1)
    live[2].to("meta")
    store.checkout(0, into={"model": live}, paths=["model/0.*", "model/1.*"])
    assert_same(live[:2].state_dict(), committed["model"][:2].state_dict())
    with pytest.raises(UnsupportedLeaf, match=r"'model/2.weight': a tensor on the meta device"):
        store.checkout(0, into={"model": live}, paths="model/*.weight")


def test_a_plain_value_takes_the_place_of_what_cannot_be_stored(store):
    store.commit({"a": 1, "t": torch.ones(3)}, step=0)
    live: dict[str, Any] = {"a": threading.Lock(), "t": threading.Lock()}
    with pytest.raises(StateMismatch, match="t: a tensor in the commit, a plain value in the target"):
        store.checkout(0, into=live)
    store.checkout(0, into=live, paths="a")
    assert live["a"] == 1


OPAQUE: dict[str, Callable[[], torch.Tensor]] = {
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "a nested tensor ": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "a torch.masked.maskedtensor.core.MaskedTensor": lambda: masked_tensor(torch.ones(3), torch.ones(3).bool()),
}


@pytest.mark.parametrize("kind", OPAQUE)
def test_a_tensor_that_takes_no_bytes_is_named(store, kind):
    store.commit({"t": torch.ones(3)}, step=0)
    with pytest.raises(StateMismatch, match=f"t: a tensor in the commit, {kind.strip()} in the target"):
        store.checkout(0, into={"t": OPAQUE[kind]()})


def test_a_path_that_selects_nothing(store, committed):
    live = app_state(1)
    before = bits(live)
    with pytest.raises(PathNotFound, match=r"no path 'model/9\.\*'"):
        store.checkout(0, into=live, paths=["model/**", "model/9.*"])
    with pytest.raises(PathNotFound, match="main@0: the list of paths is empty"):
        store.checkout(0, into=live, paths=[])
    assert_same(bits(live), before)


# what does not fit


def misfits() -> tuple[dict[str, Any], set[str], set[str], set[str]]:
    """A target, and the paths that are missing, unexpected, different."""
    live = app_state(1)
    live["model"] = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 16, bias=False), nn.Linear(2, 2))
    live["plain"] = {"a": noise(2000).double(), "c": 1, "list": [{"x": 5}], "expanded": torch.zeros(1).expand(5)}
    live["optim"] = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    live["nowhere"] = Counting(x=1)
    missing = {"model/3.weight", "model/3.bias", "plain/c", "plain/expanded", "nowhere"}
    unexpected = {"model/2.bias", "plain/b", "plain/list/1/x"}
    return live, missing, unexpected, {"model/2.weight", "plain/a", "optim"}


def test_all_that_does_not_fit_is_reported_at_once(store, committed):
    live, missing, unexpected, different = misfits()
    before = bits(live)
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into=live)
    error = caught.value
    assert (set(error.missing), set(error.unexpected)) == (missing, unexpected)
    assert {line.partition(":")[0] for line in error.different} == different
    assert all(path in str(error) for path in missing | unexpected | different)
    assert "to leave what is meant to differ as it is, select the others with paths=" in str(error)
    assert "changes the shape of its state" not in str(error)
    assert_same(bits(live), before)
    assert live["counter"].loaded == []


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def within(module: nn.Module) -> Any:
    """As DDP has it: under `module`."""
    return nn.ModuleDict({"module": module})


COMPILED, NAMED = "_orig_mod.", "or DCP's named state dicts"
ALIKE = "give a target that is wrapped alike, and from now on commit"
WRAPPED: dict[str, tuple[Any, Any, list[str]]] = {
    "a compiled target": (
        nn.Identity(),
        compiled,
        [f"{COMPILED} in the target: give what it wraps, model._orig_mod, {NAMED}"],
    ),
    "a compiled commit": (compiled, nn.Identity(), [f"{COMPILED} in the commit: {ALIKE} model._orig_mod, {NAMED}"]),
    "DDP's target": (
        compiled,
        lambda one: compiled(within(one)),
        ["module. in the target: give what it wraps, model.module"],
    ),
    "others": (compiled, within, ["module. in the target", "_orig_mod. in the commit"]),
    "a part": (
        nn.Identity(),
        lambda one: nn.Sequential(one[0], compiled(one[1]), one[2]),
        ["_orig_mod. in the target"],
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_wraps_a_module_is_reported(store, name):
    committed, target, lines = WRAPPED[name]
    store.commit({"model": committed(model(0))}, step=0)
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into={"model": target(model(1))})
    _, _, advice = str(caught.value).partition("the same but for what wraps a module:")
    assert [
        line.strip()[: len(expected)] for line, expected in zip(advice.split("\n")[1:], lines, strict=True)
    ] == lines


def test_other_names_are_not_taken_for_what_wraps_a_module(store):
    store.commit({"model": nn.ModuleDict({"my_module": model(0)}), "module": 1}, step=0)
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into={"model": nn.ModuleDict({"my": model(0)}), "module": 1})
    assert "wraps" not in str(caught.value)


@pytest.mark.parametrize("name", ["plain", "model", "state"])
@pytest.mark.parametrize("kind", ["missing", "unexpected"])
def test_one_path_is_enough_to_be_refused(store, name, kind, caplog):
    def made(seed: int, *, more: bool) -> dict[str, Any]:
        tensors = {"a": noise(2000, seed=seed)} | ({"b": noise(2000, seed=seed)} if more else {})
        modules = {"plain": lambda: tensors, "model": lambda: nn.ParameterDict(tensors)}
        return {"x": modules.get(name, lambda: ckptstore.StateDict(**tensors))()}

    store.commit(made(0, more=kind == "unexpected"), step=0)
    live = made(1, more=kind == "missing")
    before = bits(live)
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into=live)
    assert getattr(caught.value, kind) == ("x/b",)
    assert_same(bits(live), before)
    with caplog.at_level("INFO", "ckptstore"):
        store.checkout(0, into=live, strict=False)
    assert_same(bits(live)["x"]["a"], noise(2000))
    title = {"missing": "kept as they were", "unexpected": "of the commit, not loaded"}[kind]
    assert caplog.messages == [f"only what both sides have is loaded\n  {title}:\n    x/b"]


def test_what_is_different_is_refused_without_strict_too(store, committed):
    live, *_ = misfits()
    before = bits(live)
    with pytest.raises(StateMismatch):
        store.checkout(0, into=live, strict=False)
    assert_same(bits(live), before)


def test_without_strict_the_intersection_is_loaded(store, committed):
    live, *_ = misfits()
    live["optim"] = torch.optim.AdamW(live["model"].parameters())
    live["model"][2] = nn.Linear(64, 32, bias=False)
    del live["model"][3], live["plain"]["a"], live["optim"]
    theirs = bits(committed)
    store.checkout(0, into=live, strict=False)
    after = bits(live)
    for name in ("0.weight", "1.running_mean", "1.num_batches_tracked"):
        assert_same(after["model"][name], theirs["model"][name])
    assert_same(after["model"]["2.weight"], theirs["model"]["2.weight"])
    assert_same(after["plain"], {"c": 1, "list": [{"x": 0}], "expanded": torch.zeros(1).expand(5)})
    assert after["counter"] == {"x": 0, "y": 0}
    assert after["nowhere"] == {"x": 1}
    assert live["nowhere"].loaded == []


TARGETS = {
    "another dtype": torch.zeros(2000, dtype=torch.float64),
    "another shape": torch.zeros(2, 1000),
    "expanded": torch.zeros(1).expand(2000),
    "numpy": np.zeros(2000, np.float32),
    "a value": 5,
    "a container": {"a": 1},
    "sparse": torch.zeros(2000).to_sparse(),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_tensor_into_what_it_does_not_fit(store, name):
    store.commit({"first": noise(2000), "t": noise(2000)}, step=0)
    live: dict[str, Any] = {"first": torch.zeros(2000), "t": copy.copy(TARGETS[name])}
    with pytest.raises(StateMismatch, match=r"\bt\b"):
        store.checkout(0, into=live)
    assert not live["first"].any()


def test_a_value_into_a_tensor(store):
    store.commit({"t": 5}, step=0)
    with pytest.raises(StateMismatch, match="t: a plain value in the commit, a tensor in the target"):
        store.checkout(0, into={"t": torch.zeros(3)})


def test_a_read_only_array(store):
    store.commit({"a": np.ones(3)}, step=0)
    target = np.zeros(3)
    target.flags.writeable = False
    with pytest.raises(StateMismatch, match="a: the target is read-only"):
        store.checkout(0, into={"a": target})


def test_a_module_of_inference_mode(store):
    store.commit({"first": torch.ones(3), "m": nn.Linear(3, 4)}, step=0)
    with torch.inference_mode():
        live: dict[str, Any] = {"first": torch.zeros(3), "m": nn.Linear(3, 4)}
    with pytest.raises(StateMismatch, match=r"m/weight: .* made in torch.inference_mode\(\): check out within"):
        store.checkout(0, into=live)
    assert not live["first"].any()
    with torch.inference_mode():
        store.checkout(0, into=live)
    assert_same(bits(live), store.checkout(0))


@pytest.mark.parametrize("other", [torch.Tensor.to_sparse_csr, torch.clone])
def test_a_sparse_tensor_into_another_kind(store, other):
    store.commit({"s": torch.eye(60).to_sparse()}, step=0)
    other, before = other(torch.eye(60)), other(torch.eye(60))
    with pytest.raises(StateMismatch, match=r"(?m)^ +s(:|$)"):
        store.checkout(0, into={"s": other})
    assert_same(other, before)


@pytest.mark.parametrize("paths", [None, "layers/**"])
def test_of_many_sparse_tensors_each_takes_as_long_as_of_few(store, paths):
    def state(count: int, value: float) -> dict[str, Any]:
        return {"layers": [torch.full((2,), value).to_sparse() for _ in range(count)]}

    def calls(count: int) -> int:
        store.commit(state(count, 1), step=count)
        target, seen = state(count, 0), Counter[str]()
        sys.setprofile(lambda _, event, __: seen.update([event]))
        try:
            store.checkout(count, into=target, paths=paths)
        finally:
            sys.setprofile(None)
        assert all(tensor.to_dense().sum() == 2 for tensor in target["layers"])
        return seen["call"]

    calls(1)  # which imports
    assert calls(400) < 6 * calls(100)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ["sparse", "quantised"])
def test_a_tensor_that_is_dense_on_one_side_only(store, name, strict):
    """It is told as what it is, and not left out where one is not strict."""
    other = {
        "sparse": lambda it: it.to_sparse(),
        "quantised": lambda it: torch.quantize_per_tensor(it, 0.5, 0, torch.qint8),
    }[name]
    store.commit({"s": {"t": other(torch.ones(60)), "x": 1}}, step=0)
    store.commit({"s": {"t": torch.ones(60), "x": 1}}, step=1)
    for step, live, told in (
        (0, torch.zeros(60), r"s/t: .* in the commit, a dense tensor in the target"),
        (1, other(torch.zeros(60)), r"s/t: a dense tensor in the commit, .* in the target"),
    ):
        target: dict[str, Any] = {"s": {"t": live, "x": 2}}
        with pytest.raises(StateMismatch, match=told):
            store.checkout(step, into=target, strict=strict)
        assert target["s"]["x"] == 2 and not (live.to_dense() if live.is_sparse else live.dequantize()).any()
        store.checkout(step, into=target, paths="s/x")
        assert target["s"]["x"] == 1


def test_a_quantised_tensor_of_another_scale(store):
    store.commit({"q": torch.quantize_per_tensor(torch.ones(100), 0.5, 0, torch.qint8)}, step=0)
    target = {"q": torch.quantize_per_tensor(torch.zeros(100), 0.25, 0, torch.qint8)}
    store.checkout(0, into=target)
    assert_same(target, store.checkout(0))
    live = torch.quantize_per_tensor(torch.zeros(50), 0.25, 0, torch.qint8)
    with pytest.raises(StateMismatch, match="q"):
        store.checkout(0, into={"q": live})
    assert not live.int_repr().any()


@pytest.mark.parametrize("into", [[], 5, {1: 2}, {Path("model"): 2}, {("model",): 2}, "model"])
def test_a_target_that_is_no_app_state(store, committed, into):
    with pytest.raises(InvalidArgument, match="app state"):
        store.checkout(0, into=into)


def test_what_cannot_take_plain_values_is_refused_at_once(store):
    store.commit({"step": 1}, step=0)
    with pytest.raises(ckptstore.InvalidArgument, match="mappingproxy"):
        store.checkout(0, into=MappingProxyType({"step": 0}))


# types that cannot be had


class Odd(dict[str, int]):
    """Has no encoding."""


def test_a_pickle_is_refused_before_anything_is_written(store):
    store.commit({"model": model(0), "odd": Counting(o=Odd(x=1))}, step=0, allow_pickle=True)
    live: dict[str, Any] = {"model": model(1), "odd": Counting(o=Odd())}
    before = bits(live)
    with pytest.raises(PickleRefused, match="'odd/o'"):
        store.checkout(0, into=live)
    assert_same(bits({"model": live["model"]}), {"model": before["model"]})
    assert live["odd"].loaded == []
    store.checkout(0, into=live, allow_pickle=True)
    assert live["odd"].state == {"o": {"x": 1}}
    assert type(live["odd"].state["o"]) is Odd


@pytest.mark.parametrize(
    "source",
    [
        "from collections import namedtuple\nThing = namedtuple('Thing', 'a')\nmade = {'x': Thing([{}])}",
        "from dataclasses import dataclass\n@dataclass\nclass Thing:\n    a: int\nmade = {'x': Thing(1)}",
        "import enum\nclass Thing(enum.Enum):\n    A = 1\nmade = {'x': Thing.A}",
        "import enum\nclass Thing(enum.Enum):\n    A = 1\nmade = {'x': {Thing.A: 1}}",
        "import enum\nclass Thing(enum.Enum):\n    A = 1\nmade = {'x': [{(Thing.A,): 1}]}",
    ],
    ids=["namedtuple", "dataclass", "enum", "key", "key within a key"],
)
def test_an_unknown_type_is_reported_before_anything_is_written(store, monkeypatch, source):
    module = ModuleType("gone_for_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, module.__dict__)
    store.commit({"model": model(0), "thing": Counting(**module.made)}, step=0)
    live: dict[str, Any] = {"model": model(1), "thing": Counting()}
    before = bits(live)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(UnknownType, match="import gone_for_a_test first"):
        store.checkout(0, into=live)
    assert_same(bits(live), before)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    store.checkout(0, into=live)
    assert live["thing"].state == module.made


class Unready:
    """Has nothing to save as long as `x` is not set, and takes nothing."""

    x: int

    def state_dict(self) -> Any:
        return {"x": self.x}

    def load_state_dict(self, state: Any) -> None:
        raise RuntimeError("not yet")


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_what_a_state_dict_raises_says_whose_it_is(store, how):
    with pytest.raises(AttributeError, match="no attribute 'x'") as caught:
        getattr(store, how)({"data": {"loaders": [Unready()]}}, step=0)
    assert caught.value.__notes__ == ["while asking 'data/loaders/0' for its state_dict()"]


def test_what_a_load_state_dict_raises_says_whose_it_is(store):
    loader = Unready()
    loader.x = 1
    store.commit({"loader": loader}, step=0)
    with pytest.raises(RuntimeError, match="not yet") as caught:
        store.checkout(0, into={"loader": loader})
    assert caught.value.__notes__ == ["while giving 'loader' the commit's state in load_state_dict()"]


def test_damage_is_never_loaded(store, tmp_path, committed):
    live = app_state(1)
    (pack,) = (tmp_path / "store").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    with pytest.raises(ckptstore.CorruptData):
        store.checkout(0, into=live)
    assert live["counter"].loaded == []


def test_a_small_budget_is_enough(store, committed):
    live = app_state(1)
    store.checkout(0, into=live, memory_budget_bytes=8192)
    assert_same(bits(live), bits(committed))
    with pytest.raises(ckptstore.BudgetTooSmall, match="give at least"):
        store.checkout(0, into=live, memory_budget_bytes=10)


def test_progress_reaches_the_end(store, committed):
    calls: list[tuple[str, int, int]] = []
    store.checkout(0, into=app_state(1), progress=lambda *seen: calls.append(seen))
    assert {stage for stage, *_ in calls} == {"checkout"}
    done = [count for _, count, _ in calls]
    assert done == sorted(done)
    assert 0 < done[-1] <= calls[-1][2] == store.find(0).logical_bytes
