"""Every kind of leaf and container comes back from a commit as it was, to the last bit."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import math
import struct
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import ckptstore
from ckptstore import PickleRefused, StateError, UnsupportedLeaf
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import (
    NUMPY_DTYPES,
    STATES,
    TORCH_DTYPES,
    Access,
    Colour,
    Frozen,
    Level,
    Pair,
    Point,
    record,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors


def bits(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random bits of any dtype."""
    count = math.prod(shape) * dtype.itemsize
    found = bits(count) & 1 if dtype is torch.bool else bits(count)
    return torch.from_numpy(found).view(dtype).view(shape)


def array(dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    found = bits(math.prod(shape) * dtype.itemsize)
    if dtype.kind in "bU":
        found &= 0 if dtype.kind == "U" else 1
    made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=found)
    return made


def payloads(form: str, *patterns: int) -> bytes:
    return struct.pack(f"<{len(patterns)}{form}", *patterns)


def special(dtype: torch.dtype, form: str, *patterns: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(payloads(form, *patterns) * 40), dtype=dtype)


def grid() -> torch.Tensor:
    return torch.where(torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.5, 0.0, 1.5)


def quantised(dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_tensor(grid(), 0.1, 3, dtype)


def per_channel(axis: int, zero_points: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.quantize_per_channel(grid(), torch.rand(64) + 0.1, zero_points, axis, dtype)


STRUCTURED = [("a", ">i4"), ("b", "<f8", (2, 3)), ("c", [("d", "S3"), ("e", "?")])]
ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
WITH_GAPS = np.dtype({"names": ["x", "y"], "formats": ["<f4", "<i2"], "offsets": [2, 8], "itemsize": 16})

TENSORS: dict[str, Callable[[], Any]] = {
    **{str(dtype): partial(tensor, 70, 33, dtype=dtype) for dtype in TORCH_DTYPES},
    **{f"{dtype} 0-d": partial(tensor, dtype=dtype) for dtype in TORCH_DTYPES},
    "0-d": lambda: torch.tensor(2.5),
    "zero elements": lambda: torch.empty(3, 0, 2),
    "zero elements transposed": lambda: torch.empty(3, 0, 2).transpose(0, 2),
    "one element": lambda: tensor(1, 1, 1),
    "non-contiguous": lambda: tensor(80, 60)[::2, 1::3],
    "transposed": lambda: tensor(80, 60).t(),
    "permuted": lambda: tensor(8, 10, 60).permute(2, 0, 1),
    "channels last": lambda: tensor(4, 8, 10, 10).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: tensor(60, 1).expand(60, 50),
    "expanded 0-d": lambda: torch.tensor(2.5).expand(4000),
    "a view of a larger storage": lambda: tensor(100_000)[5000:8000],
    "overlapping": lambda: tensor(4000).as_strided((1000, 8), (3, 1)),
    "conj": lambda: tensor(2000, dtype=torch.complex64).conj(),
    "neg": lambda: tensor(2000, dtype=torch.complex64).conj().imag,
    "flipped": lambda: tensor(60, 50).flip(0),
    "a row beyond a chunk": lambda: tensor(3, 5000),
    "NaN payloads, -0.0 and inf, float64": lambda: special(
        torch.float64, "Q", 0x7FF0000000000001, 0xFFF8000000000123, 1 << 63, 0x7FF0000000000000, 0xFFF0000000000000, 1
    ),
    "NaN payloads, -0.0 and inf, float32": lambda: special(
        torch.float32, "L", 0x7F800001, 0xFFC00123, 1 << 31, 0x7F800000, 0xFF800000, 1
    ),
    "NaN payloads, -0.0 and inf, float16": lambda: special(
        torch.float16, "H", 0x7C01, 0xFE12, 1 << 15, 0x7C00, 0xFC00, 1
    ),
    "NaN payloads, -0.0 and inf, bfloat16": lambda: special(
        torch.bfloat16, "H", 0x7F81, 0xFFC3, 1 << 15, 0x7F80, 0xFF80, 1
    ),
    "parameter": lambda: nn.Parameter(tensor(2000)),
    "frozen parameter": lambda: nn.Parameter(tensor(2000), requires_grad=False),
    "parameter of a view": lambda: nn.Parameter(tensor(60, 50).t()),
    "requires grad": lambda: tensor(2000).requires_grad_(),
    "result of a graph": lambda: nn.Parameter(torch.ones(2000)) * 2,
    "sparse COO": lambda: grid().to_sparse(),
    "sparse COO, not coalesced": lambda: torch.sparse_coo_tensor(
        torch.ones(1, 2000, dtype=torch.int64), torch.rand(2000), (5,)
    ),
    "sparse COO, hybrid": lambda: grid().to_sparse(1),
    "sparse COO, empty": lambda: torch.zeros(3, 4).to_sparse(),
    "sparse COO, bfloat16 parameter": lambda: nn.Parameter(grid().bfloat16().to_sparse()),
    "sparse CSR": lambda: grid().to_sparse_csr(),
    "sparse CSR, batched": lambda: torch.stack([grid() + 1, grid() + 2]).to_sparse_csr(),
    "sparse CSC": lambda: grid().to_sparse_csc(),
    "sparse BSR": lambda: grid().to_sparse_bsr((2, 4)),
    "sparse BSC": lambda: grid().to_sparse_bsc((4, 2)),
    "quantised per tensor, qint8": lambda: quantised(torch.qint8),
    "quantised per tensor, quint8": lambda: quantised(torch.quint8),
    "quantised per tensor, qint32": lambda: quantised(torch.qint32),
    "quantised per tensor, transposed": lambda: quantised(torch.qint8).t(),
    "quantised per channel": lambda: per_channel(1, torch.arange(64), torch.qint8),
    "quantised per channel, float zero points": lambda: per_channel(0, torch.rand(64), torch.quint8),
}

ARRAYS: dict[str, Callable[[], Any]] = {
    **{f"numpy {dtype}": partial(array, dtype, 40, 30) for dtype in NUMPY_DTYPES},
    "numpy structured": lambda: array(STRUCTURED, 30, 7),
    "numpy structured, aligned": lambda: array(ALIGNED, 300),
    "numpy structured, with gaps": lambda: array(WITH_GAPS, 300),
    "numpy 0-d": lambda: np.array(2.5),
    "numpy zero elements": lambda: np.empty((0, 2)),
    "numpy Fortran order": lambda: np.asfortranarray(array("f4", 50, 60)),
    "numpy view": lambda: array("f8", 100, 100)[3:50:2, ::-3],
    "numpy expanded": lambda: np.broadcast_to(array("f4", 60, 1), (60, 50)),
    "numpy read-only": lambda: np.frombuffer(bytes(5000), np.uint8),
    "numpy NaN payloads": lambda: np.frombuffer(payloads("Q", 0x7FF0000000000001, 1 << 63) * 300, "<f8"),
    "numpy scalar": lambda: np.float16(1.5),
    "numpy bool": lambda: np.bool_(True),
    "numpy structured scalar": lambda: np.array([(1, 2.5)], "i4,f8")[0],
    "numpy datetime": lambda: np.datetime64("2024-01-01T05"),
    "numpy str": lambda: np.str_("né"),
    "numpy dtype": lambda: ALIGNED,
    "numpy random state": lambda: np.random.RandomState(3).get_state(),
}

PLAIN: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bool": lambda: True,
    "int": lambda: -5,
    "int of 64 bits": lambda: [(1 << 64) - 1, -(1 << 63)],
    "int of any size": lambda: [1 << 64, -(1 << 63) - 1, 1 << 20_000],
    "float": lambda: 0.1,
    "float specials": lambda: [-0.0, float("inf"), *struct.unpack("<2d", payloads("Q", 0x7FF0000000000123, 1 << 63))],
    "complex": lambda: complex(-0.0, float("nan")),
    "str": lambda: "naïve ☃ \0 \ud800",
    "long str": lambda: "text " * 5000,
    "bytes": lambda: b"\0\xff",
    "long bytes": lambda: bits(50_000).tobytes(),
    "bytearray": lambda: bytearray(b"\0\xff"),
    "datetime": lambda: dt.datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001 - without a zone is meant
    "aware datetime": lambda: dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    "datetime with an offset": lambda: dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3), "here")),
    "date, time, timedelta": lambda: [dt.date(2024, 2, 29), dt.time(1, 2, fold=1), dt.timedelta(-1, 2, 3)],
    "Path": lambda: [Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:/y")],
    "Enum": lambda: [Colour.RED, Level.HIGH, Access.READ | Access.WRITE],
    "torch.Size": lambda: torch.Size([2, 3]),
    "torch.dtype": lambda: [torch.float8_e4m3fn, torch.qint8],
    "torch.device": lambda: [torch.device("cpu"), torch.device("cuda:1"), torch.device("meta")],
    "torch constants": lambda: [torch.strided, torch.channels_last, torch.per_tensor_affine],
    "Generator": lambda: torch.Generator().manual_seed(3),
    "Generator state": lambda: torch.Generator().manual_seed(3).get_state(),
    "range and slice": lambda: [range(1, 9, 2), slice(None, 3, None), ...],
    "exact numbers": lambda: [fractions.Fraction(1, 3), decimal.Decimal("-0.10"), uuid.UUID(int=5)],
    "types that are equal": lambda: [1, True, 1.0, np.int64(1), Level.LOW, 1 + 0j],
}

CONTAINERS: dict[str, Callable[[], Any]] = {
    "dict": lambda: {"b": 1, "a": {"c": {}}},
    "OrderedDict": lambda: OrderedDict([("b", tensor(2000)), ("a", OrderedDict())]),
    "state dict with metadata": lambda: nn.BatchNorm1d(3).state_dict(),
    "defaultdict": lambda: defaultdict(list, {"a": [tensor(9)]}),
    "Counter": lambda: Counter("abca"),
    "list": lambda: [tensor(2000), [1, []], [[]]],
    "long list": lambda: list(range(10_000)),
    "tuple": lambda: (tensor(2000), (), ((1,),)),
    "namedtuple": lambda: [Point(1, tensor(2000)), Pair({}), torch.max(tensor(4, 4), 0)[0]],
    "set": lambda: [{1, "a", (2, None)}, frozenset({1.5}), set()],
    "set of tensors": lambda: {tensor(2000), tensor(3)},
    "dataclass": lambda: [record(tensor(2000), {"x": 1}), Frozen([1])],
    "deque": lambda: deque([1, tensor(9)], 5),
    "int keys": lambda: {0: "a", -1: "b", 1 << 70: "c"},
    "str and int keys": lambda: {"0": 1, 0: 2, "-1": 3, -1: 4, "007": 5},
    "tuple keys": lambda: {(0, "a"): 1, (): 2, ((1,), None): tensor(9)},
    "keys of other types": lambda: {None: 1, True: 2, 1.5: 3, b"x": 4, Colour.RED: 5, torch.float32: 6, Path("a/b"): 7},
    "keys with separators": lambda: {"a/b": 1, "a": {"b": 2}, "a.b": 3, "%": 4, "%2F": 5, "a%2Fb": 6, "/": 7, "//": 8},
    "empty and odd keys": lambda: {"": {"": tensor(9)}, " ": 1, "\n": 2, ".": 3, "..": 4, "*": 5, "**": 6, "[a]": 7},
    "Unicode keys": lambda: {"é": 1, "e\u0301": 2, "☃": 3, "\ud800": 4, "\0": 5, "\u202e": 6},
    "long keys": lambda: {"k" * 5000: {"j" * 5000: 1}},
}

LEAVES = {**TENSORS, **ARRAYS, **PLAIN, **CONTAINERS}


@pytest.mark.parametrize("name", LEAVES)
def test_every_leaf(store, name):
    state: dict[str, Any] = {"first": 1, "x": [LEAVES[name](), {"again": LEAVES[name]()}]}
    made = store.commit(state, step=0)
    assert_same(store.checkout(0), state)
    assert_same(store.read(0, "x"), state["x"])
    assert_same(store.read(0, "x/0"), state["x"][0])
    assert store.commit(store.checkout(0), step=0) == made
    assert store.commit_async(state, step=0).result() == made


@settings(max_examples=120, suppress_health_check=list(HealthCheck), deadline=None)
@given(STATES)
def test_every_state(store, state):
    step = (store.latest() or 0) + 1
    made = store.commit(state, step=step)
    found = store.checkout(step)
    assert_same(found, state)
    assert_same(store.read(step, ""), state)
    assert store.commit(found, step=step) == made


def test_all_at_once(store):
    state: dict[str, Any] = {name: make() for name, make in LEAVES.items()}
    store.commit(state, step=0)
    assert_same(store.checkout(0), state)
    assert store.verify().ok


@contextmanager
def deterministic():
    torch._C._set_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", [deterministic, partial(torch.device, "meta")])
def test_all_at_once_whatever_torch_was_told(store, mode):
    state: dict[str, Any] = {name: make() for name, make in LEAVES.items()}
    dense = {str(dtype): torch.from_numpy(bits(70 * 33 * dtype.itemsize)).view(dtype) for dtype in TORCH_DTYPES}
    dense = {name: tensor.view(70, 33) for name, tensor in dense.items()}
    with mode():
        store.commit(state, step=0)
        store.commit_async(state, step=1).result()
        found = store.checkout(0)
        store.checkout(1, into=dense)
    assert_same(found, state)
    assert_same(dense, {name: state[name] for name in dense})


def test_a_view_is_stored_as_what_it_shows(store):
    whole = torch.from_numpy(bits(1 << 20))
    made = store.commit({"v": whole[100:5100], "e": whole[:1].expand(5000)}, step=0)
    assert made.logical_bytes == 10_000
    assert made.new_bytes < 20_000
    assert store.checkout(0)["v"].untyped_storage().nbytes() == 5000


def test_what_is_tied_is_stored_once_and_one_object_again(store):
    weight, numbers = nn.Parameter(tensor(50_000)), array("f4", 5000)
    state = {
        "model": {"emb": weight, "head": weight, "view": weight.detach(), "part": weight[:10]},
        "other": [weight, numbers],
        "numpy": {"n": numbers, "again": numbers[:]},
    }
    made = store.commit(state, step=0)
    assert made.logical_bytes < 2 * 200_000 + 20_000 + 100
    assert made.new_bytes < 250_000
    again = store.checkout(0)
    assert again["model"]["emb"] is again["model"]["head"] is again["other"][0]
    assert again["numpy"]["n"] is again["numpy"]["again"] is again["other"][1]
    assert_same(again["model"]["part"].detach(), weight.detach()[:10])
    part = store.checkout(0, paths=["other", "model/head"])
    assert part["model"]["head"] is part["other"][0]
    model = store.read(0, "model")
    assert model["emb"] is model["head"]


def test_a_module_and_its_optimizer(store):
    model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(4, 40)).sum().backward()
    optimizer.step()
    rng = ckptstore.RNGState()
    expected = {"model": model.state_dict(), "optim": optimizer.state_dict(), "rng": rng.state_dict()}
    store.commit({"model": model, "optim": optimizer, "rng": rng}, step=0)
    assert_same(store.checkout(0), expected)


class OwnDict(dict[str, int]):
    """Has no encoding."""


class OwnTensor(torch.Tensor):
    """Has no encoding."""


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "meta parameter": (lambda: nn.Linear(2, 2, device="meta").weight, "meta"),
    "nested tensor": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "nested"),
    "mkldnn": (lambda: torch.ones(2).to_mkldnn(), "mkldnn"),
    "tensor subclass": (lambda: torch.ones(2).as_subclass(OwnTensor), "OwnTensor"),
    "dict subclass": (OwnDict, "OwnDict"),
    "UserDict": (UserDict, "UserDict"),
    "object": (object, "object"),
    "function": (lambda: len, "builtin_function_or_method"),
    "class": (lambda: nn.Linear, "type"),
    "object array": (lambda: np.array([None]), "numpy array"),
    "masked array": (lambda: np.ma.masked_array([1]), "MaskedArray"),
    "lazy parameter": (lambda: nn.LazyLinear(3).weight, "not initialised yet; call the lazy module once first"),
    "lazy buffer": (lambda: nn.LazyBatchNorm1d().running_mean, "not initialised yet; call the lazy module once first"),
    "no quantizer": (lambda: torch.empty(3, dtype=torch.qint8), "a quantised tensor without a scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_leaf_is_refused_by_path_and_type(store, name):
    make, reason = REFUSED[name]
    with pytest.raises(UnsupportedLeaf, match=rf"'model/x/1'.*{reason}") as caught:
        store.commit({"w": tensor(5000), "model": {"x": [1, make()]}}, step=0)
    assert caught.value.path == "model/x/1"
    assert store.steps() == []
    assert store.stats().packs == {}


def test_a_state_that_contains_itself(store):
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    with pytest.raises(StateError, match="contains itself at 'top/me'"):
        store.commit({"top": cycle}, step=0)


@pytest.mark.parametrize("state", [[], None, 5, {1: 2}, torch.ones(2)])
def test_an_app_state_is_a_dict_of_names(store, state):
    with pytest.raises(ckptstore.InvalidArgument, match="app state"):
        store.commit(state, step=0)


def test_an_empty_state(store):
    assert store.commit({}, step=0).leaves == 0
    assert store.checkout(0) == {}


def test_pickles_need_both_sides(store):
    state = {"a": [OwnDict(x=1), tensor(2000)], "b": [OwnDict({"y" * 9000: 1})]}
    store.commit(state, step=0, allow_pickle=True)
    for refused in (store.checkout, lambda _: store.read(0, "a"), lambda _: store.read(0, "b/0")):
        with pytest.raises(PickleRefused, match=r"'[ab]/0' is a pickle.*allow_pickle=True"):
            refused(0)
    assert_same(store.checkout(0, paths="a/1"), {"a": {1: tensor(2000)}})
    again = store.checkout(0, allow_pickle=True)
    assert type(again["a"][0]) is OwnDict
    assert again["b"] == state["b"] == store.read(0, "b", allow_pickle=True)


PICKLED = [torch.float8_e4m3fn, torch.uint16, torch.complex32, torch.bits8, torch.float32]


@pytest.mark.parametrize("dtype", PICKLED, ids=str)
def test_a_pickle_may_hold_tensors_of_any_dtype_that_torch_saves(store, dtype):
    """As quantised weights of torchao do; what torch.Tensor pickles of its newer dtypes, it cannot unpickle."""
    held: Any = OwnDict()
    held["scales"] = torch.arange(64, dtype=torch.uint8).view(dtype)
    store.commit({"a": held}, step=0, allow_pickle=True)
    again = store.checkout(0, allow_pickle=True)["a"]
    assert type(again) is OwnDict
    assert_same(again["scales"], held["scales"])
    assert store.commit({"a": held, "b": 1}, step=1, allow_pickle=True).new_bytes < 1000


NESTED: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "strided": torch.nested.nested_tensor,
    "jagged": partial(torch.nested.nested_tensor, layout=torch.jagged),
}


@pytest.mark.parametrize("layout", NESTED)
def test_nested_tensors_are_pickled(store, layout):
    parts = [torch.randn(3, 4), torch.randn(2, 4)]
    advice = r"'m/n': a nested tensor; store the list that its unbind\(\) gives, or pass allow_pickle=True"
    with pytest.raises(UnsupportedLeaf, match=advice):
        store.commit({"m": {"n": NESTED[layout](parts)}}, step=0)
    store.commit({"m": {"n": NESTED[layout](parts)}}, step=0, allow_pickle=True)
    live = {"m": {"n": NESTED[layout]([torch.ones(1, 4)])}}
    store.checkout(0, into=live, allow_pickle=True)
    for again in (store.checkout(0, allow_pickle=True), live):
        assert again["m"]["n"].layout is NESTED[layout](parts).layout
        assert_same(list(again["m"]["n"].unbind()), parts)


def test_parts_of_a_state(store):
    state: dict[str, Any] = {
        "a": {"x": tensor(2000), "y": {"z": 2}},
        "b": [{"k": 0}, {"k": tensor(9)}],
        "c": Point(1, [tensor(3)]),
    }
    store.commit(state, step=0)
    assert_same(store.checkout(0, paths="a"), {"a": state["a"]})
    assert_same(store.checkout(0, paths=["a/*", "c"]), {"a": state["a"], "c": state["c"]})
    assert_same(store.checkout(0, paths="**/k"), {"b": state["b"]})
    assert_same(store.checkout(0, paths=["b/1/*", "a/y/z"]), {"a": {"y": {"z": 2}}, "b": {1: state["b"][1]}})
    with pytest.raises(ckptstore.PathNotFound, match=r"main@0 has no path 'b/2'; nearest: b"):
        store.checkout(0, paths=["a", "b/2"])
    with pytest.raises(ckptstore.PathNotFound, match="main@0: the list of paths is empty"):
        store.checkout(0, paths=[])


def test_a_tensor_of_inference_mode_comes_back(store):
    with torch.inference_mode():
        state = {"w": torch.randn(3000)}
    store.commit(state, step=1)
    assert torch.equal(store.checkout(1)["w"], state["w"])
