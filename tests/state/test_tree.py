from __future__ import annotations

import copy
import dataclasses
import sys
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from ckptstore.errors import InvalidArgument, PathNotFound, PickleRefused, StateError, UnknownType, UnsupportedLeaf
from ckptstore.format.manifest import Container, TensorEntry
from ckptstore.state.arrays import chunk_bytes, write_box
from ckptstore.state.new_arrays import allocate, finish
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat, flatten
from ckptstore.state.unflatten import narrow, unflatten
from ckptstore.state.values import decode
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import STATES, Frozen, Pair, Point, Record, record

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors


def stored(flat: Flat, *, allow_pickle: bool = False) -> tuple[dict[str, Container], dict[str, object]]:
    """Containers and leaves after a way through bytes."""
    text = msgspec.msgpack.encode(flat.containers)
    containers = msgspec.msgpack.decode(text, type=dict[str, Container])
    leaves: dict[str, object] = {}
    for path, leaf in flat.leaves.items():
        if isinstance(leaf, TensorLeaf):
            leaves[path] = _copied(leaf)
        else:
            leaves[path] = decode(msgspec.msgpack.decode(msgspec.msgpack.encode(leaf)), path, allow_pickle=allow_pickle)
    for first, *others in flat.aliases:
        leaves.update(dict.fromkeys(others, leaves[first]))
    return containers, leaves


def _copied(leaf: TensorLeaf) -> object:
    fields = ("library", "dtype", "itemsize", "shape", "order", "requires_grad", "parameter")
    entry = TensorEntry(chunk_shape=(1,) * len(leaf.shape), **{name: getattr(leaf, name) for name in fields})
    made = allocate("a", entry)
    box = (0,) * len(leaf.shape), leaf.shape
    write_box(made, *box, chunk_bytes(leaf.tensor, *box))
    return finish("a", made, entry)


def round_trip(state: Any, *, allow_pickle: bool = False) -> Any:
    flat = flatten(state, allow_pickle=allow_pickle)
    containers, leaves = stored(flat, allow_pickle=allow_pickle)
    return unflatten(containers, leaves, allow_pickle=allow_pickle)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STATES)
def test_every_state_comes_back_as_it_was(state: dict[str, Any]):
    assert_same(round_trip(state), state)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(STATES)
def test_every_subtree_comes_back(state: dict[str, Any]):
    flat = flatten(state)
    containers, leaves = stored(flat)
    assert set(unflatten(containers, leaves)) == set(state)
    for path, container in flat.containers.items():
        if path and container.kind == "dict":
            assert isinstance(unflatten(containers, leaves, root=path), dict)


def test_paths_of_a_training_state():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    leaves = flatten({"model": model, "optim": optimizer, "step": 3, "betas": [0.9, (1, 2)]}).leaves
    assert list(leaves)[:3] == ["model/weight", "model/bias", "optim/state/0/step"]
    assert leaves["optim/param_groups/0/betas"] == {"tuple": [0.9, 0.999]}
    assert leaves["betas"] == [0.9, {"tuple": [1, 2]}]
    assert leaves["step"] == 3


def test_module_metadata_survives():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    again = round_trip({"model": model})["model"]
    assert again._metadata == vars(model.state_dict())["_metadata"]
    other = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    other.load_state_dict(again)
    assert_same(other.state_dict(), model.state_dict())


def test_what_is_tied_is_named_and_tied_again():
    model = torch.nn.ModuleDict({"emb": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["emb"].weight
    array = np.ones(3)
    empty = torch.empty(0)
    state = {
        "model": model,
        "n": array,
        "m": [array[:]],
        "view": array[1:],
        "e": empty,
        "f": empty,
        "g": torch.empty(0),
    }
    flat = flatten(state)
    assert flat.aliases == (("model/emb.weight", "model/head.weight"), ("n", "m/0"), ("e", "f"))
    again = round_trip(state)
    assert again["model"]["emb.weight"] is again["model"]["head.weight"]


def test_a_parameter_and_its_data_are_two_leaves():
    parameter = torch.nn.Parameter(torch.ones(2))
    state = {"p": parameter, "d": parameter.data}
    assert flatten(state).aliases == ()
    assert_same(round_trip(state), state)


def _optimizers() -> list[type[torch.optim.Optimizer]]:
    return [
        found
        for found in vars(torch.optim).values()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer
    ]


@pytest.mark.parametrize("kind", _optimizers(), ids=lambda kind: kind.__name__)
def test_every_optimizer(kind: type[Any]):
    sparse = kind is torch.optim.SparseAdam
    model = torch.nn.Embedding(4, 2, sparse=True) if sparse else torch.nn.Linear(2, 4, bias=False)
    optimizer = kind(model.parameters(), lr=0.1)
    inputs = torch.tensor([1, 2]) if sparse else torch.ones(3, 2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(inputs).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    again = round_trip({"optim": optimizer})["optim"]
    assert_same(again, optimizer.state_dict())
    assert again["state"] or kind is torch.optim.SGD


_LR = torch.optim.lr_scheduler
_SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: _LR.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: _LR.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: _LR.StepLR(o, 2),
    "MultiStepLR": lambda o: _LR.MultiStepLR(o, [1, 3, 3]),
    "ConstantLR": _LR.ConstantLR,
    "LinearLR": _LR.LinearLR,
    "ExponentialLR": lambda o: _LR.ExponentialLR(o, 0.9),
    "PolynomialLR": _LR.PolynomialLR,
    "CosineAnnealingLR": lambda o: _LR.CosineAnnealingLR(o, 5),
    "ChainedScheduler": lambda o: _LR.ChainedScheduler([_LR.ConstantLR(o), _LR.ExponentialLR(o, 0.9)]),
    "SequentialLR": lambda o: _LR.SequentialLR(o, [_LR.ConstantLR(o), _LR.ExponentialLR(o, 0.9)], [1]),
    "ReduceLROnPlateau": _LR.ReduceLROnPlateau,
    "CyclicLR": lambda o: _LR.CyclicLR(o, 0.01, 0.1),
    "CosineAnnealingWarmRestarts": lambda o: _LR.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: _LR.OneCycleLR(o, 0.1, total_steps=10),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


@pytest.mark.parametrize("name", _SCHEDULERS)
def test_every_scheduler(name: str):
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    scheduler = _SCHEDULERS[name](optimizer)
    for loss in range(3):
        optimizer.step()
        scheduler.step(*([loss] if name == "ReduceLROnPlateau" else []))
    before = copy.deepcopy(scheduler.state_dict())
    again = round_trip({"lr": scheduler})["lr"]
    assert_same(again, before)
    _SCHEDULERS[name](torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)).load_state_dict(again)


def test_all_schedulers_are_tested():
    known = {
        found.__name__
        for found in vars(_LR).values()
        if isinstance(found, type) and issubclass(found, _LR.LRScheduler) and not found.__name__.startswith("_")
    }
    assert known - {"LRScheduler"} <= set(_SCHEDULERS)


def test_a_grad_scaler():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    assert_same(round_trip({"scaler": scaler})["scaler"], scaler.state_dict())


def test_containers_by_hand():
    made = record(torch.ones(2), [1])
    made.extra = {"not": "a field"}  # type: ignore[attr-defined]
    counted = Counter("abca")
    ordered: OrderedDict[Any, Any] = OrderedDict([(1, 2), ("1", 3), ((0, None), 4), (True, 5)])
    state = {
        "record": made,
        "frozen": Frozen([{}]),
        "point": Point(1, torch.ones(1)),
        "pair": [Pair("a")],
        "counter": counted,
        "ordered": ordered,
        "default": defaultdict(list, {"a": [torch.ones(1)]}),
        "deque": deque([1, 2], 2),
        "empty": {"dict": {}, "list": [], "set": set()},
        "keyed": {"1": "str", 1: "int", "a/b": 0, "": 1, "%": 2, -1: 3, "-1": 4, None: 5, 1.5: 6, b"": 7},
    }
    assert_same(round_trip(state), state)


def test_a_set_of_tensors():
    state = {"s": {torch.ones(2), torch.zeros(3)}}
    assert_same(round_trip(state), state)


def test_no_code_of_a_dataclass_runs():
    with pytest.raises(RuntimeError, match="must not run"):
        Record(1)
    assert isinstance(round_trip({"r": record(1, 2)})["r"], Record)


class Slotted:
    """Has slots that are no fields of whoever derives from it."""

    __slots__ = ("__own", "hidden", "unset")

    def fill(self, own: Any, hidden: Any) -> Any:
        self.__own, self.hidden = own, hidden
        return self

    def held(self) -> Any:
        return self.__own, self.hidden, hasattr(self, "unset")


@dataclasses.dataclass
class WithMore(Slotted):
    """With a slot and an attribute beside its fields."""

    a: int
    hidden: int


@dataclasses.dataclass(slots=True)
class AllSlots(Slotted):
    """Without any attribute."""

    a: int


def test_slots_of_dataclasses_that_are_no_fields_come_back():
    one, other = WithMore(1, 2), AllSlots(3)
    one.extra = 4  # type: ignore[attr-defined]
    for made in (one, other):
        made.fill(torch.ones(2), [5])
        found = round_trip({"r": made})["r"]
        assert_same((found.a, *found.held()), (made.a, torch.ones(2), [5], False))
        assert getattr(found, "extra", None) == getattr(made, "extra", None)


@pytest.mark.parametrize("state", [[1], 5, None, "s", torch.ones(1), {1: 2}, {"a": 1, None: 2}])
def test_an_app_state_is_a_dict_of_names(state: Any):
    with pytest.raises(InvalidArgument, match="app state"):
        flatten(state)


class Stateful:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@dataclasses.dataclass(eq=False)
class Linked:
    """Is hashed by what it is, not by what it holds."""

    to: list[Any]


def test_cycles_are_named():
    cycle: dict[str, Any] = {"a": [{}]}
    cycle["a"][0]["b"] = cycle
    with pytest.raises(StateError, match="'top/a/0/b'"):
        flatten({"top": cycle})
    own = Stateful(None)
    own.state = {"me": own}
    with pytest.raises(StateError, match="'own/me'"):
        flatten({"own": own})
    held = Linked([])
    held.to.append({held, Linked([])})
    with pytest.raises(StateError, match="contains itself"):
        flatten({"set": held.to[0]})


def test_the_same_object_twice_is_no_cycle():
    shared = {"w": torch.ones(2)}
    state = {"a": shared, "b": [shared, shared]}
    assert flatten(state).aliases == (("a/w", "b/0/w", "b/1/w"),)
    assert_same(round_trip(state), state)


def test_nesting_has_an_end():
    deep: Any = torch.ones(1)
    for _ in range(100):
        deep = [deep]
    assert_same(round_trip({"deep": deep}), {"deep": deep})
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(StateError, match="nested deeper"):
        flatten({"deep": deep})


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap], ids=["grad", "vmap"])
@pytest.mark.parametrize("length", [3, 0])
def test_what_torch_func_wraps_is_named(transform: Any, length: int):
    def refused(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UnsupportedLeaf, match=r"'a/x'.*outside of its functions"):
            flatten({"a": {"x": tensor.reshape(-1, 1)[:length]}})
        return tensor.sum()

    transform(refused)(torch.ones(3, 3))


class OwnTensor(torch.Tensor):
    """A subclass."""


class OwnDict(dict[str, int]):
    """A subclass."""


@dataclasses.dataclass
class OwnPair(dict[str, int]):
    """A dataclass that is a dict too."""

    a: int = 0


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (torch.ones(2, device="meta"), "meta"),
        (torch.ones(2).as_subclass(OwnTensor), "OwnTensor"),
        (torch.nested.nested_tensor([torch.ones(2)]), "nested"),
        (torch.ones(2).to_mkldnn(), "mkldnn"),
        (torch._to_functional_tensor(torch.ones(2)), "torch.func"),
        (np.array([None]), "numpy array"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.array([(1,)], "i4,").view(np.recarray), "recarray"),
        (OwnDict(), "OwnDict"),
        (OwnPair(), "OwnPair"),
        (UserDict(), "UserDict"),
        (defaultdict(lambda: 0), "defaultdict"),
        (torch.nn.Linear, "type"),
        ({object(): 1}, "object"),
    ],
)
def test_unknown_leaves_are_named(leaf: object, message: str):
    with pytest.raises(UnsupportedLeaf, match=r"'model/x/0'.*" + message) as caught:
        flatten({"model": {"x": [leaf]}})
    assert caught.value.path == "model/x/0"


def test_keys_that_would_collide_are_refused():
    with pytest.raises(StateError, match=r"'a'.*NaN"):
        flatten({"a": {float("nan"): 1, float("nan"): 2}})  # noqa: PLW0177, RUF100


def test_pickles():
    state = {"a": [OwnDict(x=1), torch.ones(1)]}
    assert_same(type(round_trip(state, allow_pickle=True)["a"][0]), OwnDict)
    flat = flatten(state, allow_pickle=True)
    with pytest.raises(PickleRefused, match="'a/0'"):
        stored(flat)


def _flat_of_a_module_that_is_gone(source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    module = ModuleType("gone_for_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, module.__dict__)
    return module, stored(flatten({"x": module.made}))


@pytest.mark.parametrize(
    "source",
    [
        "from collections import namedtuple\nThing = namedtuple('Thing', 'a')\nmade = Thing(1)",
        "from dataclasses import dataclass\n@dataclass\nclass Thing:\n    a: int\nmade = Thing(1)",
    ],
)
def test_classes_are_looked_up_and_checked(source: str, monkeypatch: pytest.MonkeyPatch):
    module, (containers, leaves) = _flat_of_a_module_that_is_gone(source, monkeypatch)
    assert unflatten(containers, leaves) == {"x": module.made}
    module.Thing = int
    with pytest.raises(UnknownType, match="'x'"):
        unflatten(containers, leaves)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(UnknownType, match="import gone_for_a_test first"):
        unflatten(containers, leaves)


def test_a_container_of_a_newer_version_is_reported():
    with pytest.raises(UnknownType, match="hologram"):
        unflatten({"": Container("hologram", ("a",))}, {"a": 1})


def test_parts_of_a_state():
    state = {"a": {"x": 1, "y": {"z": 2}, "e": {}}, "b": [{"k": 0}, {"k": 1}], "p": Point({"q": 1}, 2), "o": {"e": {}}}
    flat = flatten(state)
    containers = narrow(flat.containers, ["a/y", "b/1"])
    assert unflatten(containers, {"a/y/z": 2, "b/1/k": 1}) == {"a": {"y": {"z": 2}}, "b": {1: {"k": 1}}}
    containers = narrow(flat.containers, ["a", "p/x"])
    leaves = {"a/x": 1, "a/y/z": 2, "p/x/q": 1}
    assert unflatten(containers, leaves) == {"a": state["a"], "p": {"x": {"q": 1}}}
    assert unflatten(flat.containers, {"a/y/z": 2}, root="a/y") == {"z": 2}
    assert unflatten(flat.containers, {"a/y/z": 2}, root="a/y/z") == 2
    with pytest.raises(PathNotFound, match="'c'"):
        unflatten(flat.containers, {"a/x": 1}, root="c")


def test_a_part_of_a_sparse_tensor():
    flat = flatten({"s": torch.eye(3).to_sparse()})
    assert set(flat.leaves) == {"s/indices", "s/values"}
    values = torch.ones(3)
    assert unflatten(flat.containers, {"s/values": values}) == {"s": {"values": values}}


def test_parts_of_composites_are_live():
    sparse = torch.eye(3).to_sparse_csr()
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    flat = flatten({"s": sparse, "q": quantised})
    leaves: dict[str, Any] = flat.leaves
    leaves["s/values"].tensor.fill_(7)
    leaves["q/int_repr"].tensor.fill_(6)
    assert sparse.to_dense().trace() == 21
    assert quantised.dequantize().tolist() == [3, 3, 3]


def test_statefuls_are_found_where_they_lie():
    inner, outer = Stateful({"x": 1}), Stateful(Stateful({"y": 1}))
    found = flatten({"a": [inner, 1], "b": outer, "c": {"d": 5}}).owners
    assert found == {"a/0": inner, "b": outer}
    assert set(flatten({"a": [inner, 1], "b": outer}).leaves) == {"a/0/x", "a/1", "b/y"}
