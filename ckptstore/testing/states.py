"""Hypothesis strategies for states of every kind of leaf and container."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

TORCH_DTYPES = sorted(
    {
        found
        for name, found in vars(torch).items()
        if isinstance(found, torch.dtype) and not name.startswith(("qint", "quint"))
    },
    key=str,
)
NUMPY_DTYPES = ["<f4", ">f8", "<i2", ">u4", "|b1", "<c16", "<f2", "<M8[ns]", ">m8[s]", "<U3", "|S5", "|V3", "<g"]


class Colour(enum.Enum):
    """A plain Enum."""

    RED = "red"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    """An Enum whose members are ints."""

    LOW = 1
    HIGH = 2


class Access(enum.Flag):
    """An Enum whose members combine."""

    READ = 1
    WRITE = 2


Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - the untyped kind is meant


class Pair(NamedTuple):
    """A typed namedtuple."""

    first: Any
    second: Any = None


@dataclasses.dataclass
class Record:
    """A dataclass that counts how often its code ran."""

    a: Any
    b: Any = None

    def __post_init__(self) -> None:
        raise RuntimeError("a checkout must not run this")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A dataclass without a dict."""

    a: Any


def record(a: object, b: object) -> Record:
    """A `Record`, past its constructor."""
    made = Record.__new__(Record)
    made.a, made.b = a, b
    return made


_SURROGATES = st.text(st.characters(categories=["Cs", "L", "P"]), min_size=1, max_size=4)
_TEXT = st.text(max_size=6) | st.sampled_from(["", "0", "-1", "007", "a/b", "100%", "%2F", "%(null)", "layers.0"])
_INTS = st.integers() | st.sampled_from([-(1 << 63), (1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 1 << 999])
_FLOATS = st.floats() | st.binary(min_size=8, max_size=8).map(lambda bits: struct.unpack("<d", bits)[0])
_FIXED_ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(seconds=-3661, microseconds=5), "here")])
_ZONES = st.timezones() | _FIXED_ZONES

_KEY_PARTS = st.one_of(
    _TEXT,
    _SURROGATES,
    _INTS,
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.binary(max_size=4),
    st.sampled_from([*Colour, *Level, Access.READ | Access.WRITE, torch.float32, torch.device("cuda:1"), Path("a/b")]),
)
KEYS = _KEY_PARTS | st.recursive(_KEY_PARTS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)

_MOMENTS = st.one_of(
    st.datetimes(timezones=_ZONES),
    st.times(timezones=_FIXED_ZONES),
    st.dates(),
    st.timedeltas(),
    st.datetimes().map(lambda moment: moment.replace(fold=1)),
)
_NUMPY_SCALARS = st.sampled_from(
    [
        *(np.float32(1.5), np.int64(3), np.uint8(255), np.bool_(True), np.complex64(1 - 2j), np.float16("nan")),
        *(np.datetime64("2024-01-01"), np.datetime64("NaT", "ns"), np.timedelta64(3, "s"), np.longdouble(1) / 3),
        *(
            np.str_("né"),
            np.str_(""),
            np.bytes_(b"a\0"),
            np.array([(1, 2.5)], "i4,f8")[0],
            np.dtype("i4,f8"),
            np.dtype(">f4"),
        ),
    ]
)
_OTHERS = st.one_of(
    st.complex_numbers(),
    st.binary(max_size=6).map(bytearray),
    st.fractions(),
    st.decimals(),
    st.uuids(),
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)),
    st.builds(slice, st.none() | _INTS, st.none() | _FLOATS),
    st.sampled_from([PurePosixPath("/a"), PureWindowsPath("c:/a"), Path()]),
    st.sampled_from(
        [..., torch.Size([2, 3]), torch.strided, torch.sparse_csr, torch.channels_last, torch.per_tensor_affine]
    ),
    st.integers(0, 99).map(lambda seed: torch.Generator().manual_seed(seed)),
)
SCALARS = st.one_of(_KEY_PARTS, _FLOATS, _MOMENTS, _NUMPY_SCALARS, _OTHERS)


@st.composite
def dense_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every dtype and layout in memory, with random bits."""
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    bits = bytearray(draw(st.binary(min_size=count, max_size=count)) + bytes(16))
    if dtype is torch.bool:
        bits = bytearray(bit & 1 for bit in bits)
    whole = torch.frombuffer(bits, dtype=torch.uint8)[: count or 16].view(dtype)
    tensor = whole[: count // dtype.itemsize].view(shape) if shape else whole[0]
    return _tracked(draw, _laid_out(draw, tensor))


def _laid_out(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    how = draw(st.sampled_from(["plain", "permuted", "strided", "expanded", "conj", "neg"]))
    if how == "permuted":
        return tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if how == "strided" and tensor.ndim:
        return tensor[..., ::2]
    if how == "expanded":
        return tensor.expand(2, *tensor.shape)
    if how == "conj" and tensor.dtype in {torch.complex64, torch.complex128}:
        return tensor.conj()
    if how == "neg" and tensor.dtype in {torch.complex64, torch.complex128}:
        return tensor.conj().imag
    return tensor


def _tracked(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    differentiable = tensor.is_floating_point() or tensor.is_complex()
    requires_grad = differentiable and draw(st.booleans())
    if draw(st.booleans()):
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.detach().requires_grad_(requires_grad)


@st.composite
def numpy_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of plain, structured and byte-swapped dtypes in several layouts, with random bits."""
    structured = [("a", ">i4"), ("b", "<f8", (2,)), ("c", [("d", "S3")])]
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    dtype = np.dtype(draw(st.sampled_from([*NUMPY_DTYPES, structured, aligned])))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    bits = bytearray(draw(st.binary(min_size=count, max_size=count)))
    if dtype.kind in "bU":
        bits = bytearray(len(bits))
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=bits)
    return draw(st.sampled_from([array, array.T, array[..., ::2] if shape else array]))


@st.composite
def composite_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Sparse and quantised tensors."""
    numbers = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0, -0.5, float("nan")]), min_size=16, max_size=16)))
    dense = numbers.view(4, 4)
    kinds: list[Callable[[], torch.Tensor]] = [
        dense.to_sparse,
        dense.to_sparse_csr,
        dense.to_sparse_csc,
        lambda: dense.to_sparse_bsr((2, 2)),
        lambda: dense.to_sparse_bsc((2, 2)),
        lambda: dense.to_sparse(1),
        lambda: torch.sparse_coo_tensor(torch.tensor([[1, 1]]), dense[:2], (3, 4), check_invariants=True),
        lambda: torch.nn.Parameter(dense.to_sparse()),
        lambda: torch.quantize_per_tensor(dense.nan_to_num(), 0.1, 3, torch.quint8).t(),
        lambda: torch.quantize_per_tensor(dense.nan_to_num(), 0.3, 0, torch.qint32),
        lambda: torch.quantize_per_channel(dense.nan_to_num(), torch.rand(4) + 0.1, torch.arange(4), 1, torch.qint8),
        lambda: torch.quantize_per_channel(dense.nan_to_num(), torch.rand(4) + 0.1, torch.rand(4), 0, torch.quint8),
    ]
    return draw(st.sampled_from(kinds))()


ARRAYS = st.one_of(dense_tensors(), dense_tensors(), numpy_arrays(), composite_tensors())
LEAVES = SCALARS | ARRAYS


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    mappings = st.dictionaries(KEYS, inner, max_size=4)
    items = st.lists(inner, max_size=4)
    return st.one_of(
        mappings,
        mappings.map(OrderedDict),
        st.builds(defaultdict, st.sampled_from([None, list, int]), mappings),
        st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter),
        items,
        items.map(tuple),
        st.builds(deque, items, st.none() | st.integers(5, 9)),
        st.builds(Point, inner, inner),
        inner.map(Pair),
        st.builds(record, inner, inner),
        inner.map(Frozen),
        inner.map(lambda leaf: [leaf, {"again": leaf}]),
    )


_PLAIN_SETS = st.lists(_KEY_PARTS, max_size=4).flatmap(lambda items: st.sampled_from([set(items), frozenset(items)]))
TREES = st.recursive(LEAVES | _PLAIN_SETS, _containers, max_leaves=8)
STATES = st.dictionaries(_TEXT, TREES, max_size=4)
"""App states: dicts of names to nested state."""
