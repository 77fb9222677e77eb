"""Whether two states are the same, to the last bit."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from ckptstore.state.addresses import identity
from ckptstore.state.tensors import TensorLeaf

_MAPPINGS = frozenset({dict, OrderedDict, defaultdict, Counter})
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_same(one: object, other: object) -> None:
    """Raises AssertionError, naming the place, unless two states are the same.

    Types must be exactly equal, keys in the same order, arrays equal in dtype, shape, order in memory, bits,
    requires_grad and Parameter-ness, and what is one tensor in one must be one in the other. Devices may differ.
    """
    comparison = _Comparison()
    comparison.same(one, other, "state")


class _Comparison:
    def __init__(self) -> None:
        self._ties: dict[Hashable, Hashable] = {}
        self._ties_back: dict[Hashable, Hashable] = {}
        self._alive: list[object] = []  # an identity lasts as long as its tensor

    def same(self, one: Any, other: Any, at: str) -> None:
        cls = type(one)
        _equal(cls, type(other), f"{at}: the type")
        if isinstance(one, torch.Tensor):
            self._tensors(one, other, at)
        elif isinstance(one, np.ndarray):
            self._arrays(one, other, at)
        elif cls in _MAPPINGS:
            self._mappings(one, other, at)
        elif cls in {set, frozenset}:
            self._sets(one, other, at)
        elif isinstance(one, list | tuple | deque):
            self._items(one, other, at)
            _equal(getattr(one, "maxlen", None), getattr(other, "maxlen", None), f"{at}: maxlen")
        elif dataclasses.is_dataclass(one) and not isinstance(one, enum.Enum):
            self._mappings(_held(one), _held(other), at)
        else:
            _equal(_canonical(one), _canonical(other), at)

    def _items(self, one: Iterable[Any], other: Iterable[Any], at: str) -> None:
        left, right = list(one), list(other)
        _equal(len(left), len(right), f"{at}: the length")
        for place, (item, match) in enumerate(zip(left, right, strict=True)):
            self.same(item, match, f"{at}[{place}]")

    def _sets(self, one: Iterable[Any], other: Iterable[Any], at: str) -> None:
        left, right = list(one), list(other)
        if any(isinstance(item, torch.Tensor) for item in left):
            left, right = sorted(left, key=_bits), sorted(right, key=_bits)
        else:
            left, right = sorted(left, key=_sort_key), sorted(right, key=_sort_key)
        self._items(left, right, at)

    def _mappings(self, one: Mapping[Any, Any], other: Mapping[Any, Any], at: str) -> None:
        self._items(one.keys(), other.keys(), f"{at}: the keys")
        for (key, item), match in zip(one.items(), other.values(), strict=True):
            self.same(item, match, f"{at}[{key!r}]")
        if isinstance(one, OrderedDict | Counter):
            self.same(vars(one), vars(other), f"{at}: the attributes")
        if isinstance(one, defaultdict) and isinstance(other, defaultdict):
            _equal(one.default_factory, other.default_factory, f"{at}: the factory")

    def _tensors(self, one: torch.Tensor, other: torch.Tensor, at: str) -> None:
        for name in ("dtype", "shape", "layout", "requires_grad", "is_quantized"):
            _equal(getattr(one, name), getattr(other, name), f"{at}.{name}")
        if one.layout is torch.strided and not one.is_quantized:
            _equal(TensorLeaf(one).order, TensorLeaf(other).order, f"{at}: the order of dims in memory")
            _equal(_bits(one), _bits(other), f"{at}: the bits")
            self._tie(one, other, at)
        else:
            self._items(_parts(one), _parts(other), at)

    def _arrays(self, one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], at: str) -> None:
        _equal((one.dtype.str, one.dtype.descr), (other.dtype.str, other.dtype.descr), f"{at}.dtype")
        _equal(one.shape, other.shape, f"{at}.shape")
        _equal(TensorLeaf(one).order, TensorLeaf(other).order, f"{at}: the order of dims in memory")
        _equal(_padded_bytes(one), _padded_bytes(other), f"{at}: the bytes")
        self._tie(one, other, at)

    def _tie(self, one: Any, other: Any, at: str) -> None:
        self._alive += [one, other]
        left, right = identity(one), identity(other)
        _equal(self._ties.setdefault(left, right), right, f"{at}: the tensor it is tied to")
        _equal(self._ties_back.setdefault(right, left), left, f"{at}: the tensor it is tied to")


def _equal(one: object, other: object, what: str) -> None:
    if one != other:
        raise AssertionError(f"{what} differs: {one!r:.200} and {other!r:.200}")


def _held(instance: Any) -> dict[str, Any]:
    held = dict(getattr(instance, "__dict__", {}))
    names = [field.name for field in dataclasses.fields(instance) if hasattr(instance, field.name)]
    return {name: getattr(instance, name) for name in names} | held


def _canonical(value: Any) -> object:
    """What equals exactly for values that are the same."""
    if isinstance(value, np.generic):
        return value.dtype.descr, value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if isinstance(value, torch.Generator):
        return str(value.device), value.get_state().numpy().tobytes()
    if isinstance(value, slice):
        return tuple((type(part), _canonical(part)) for part in (value.start, value.stop, value.step))
    if hasattr(value, "fold"):
        return value, value.fold, repr(value)
    return str(value) if isinstance(value, Decimal) else value


def _sort_key(item: object) -> tuple[str, str]:
    return type(item).__qualname__, repr(_canonical(item))


def _bits(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().resolve_conj().resolve_neg()
    words = torch.view_as_real(dense).view(torch.int64) if dense.itemsize == 16 else dense.view(_WORDS[dense.itemsize])
    return words.cpu().numpy().tobytes()


def _padded_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return array.view(np.dtype((np.void, array.itemsize))).tobytes()


def _parts(tensor: torch.Tensor) -> list[object]:
    """What a tensor that is not dense consists of."""
    bare = tensor.detach()
    if bare.is_quantized:
        if bare.qscheme() is torch.per_tensor_affine:
            return [bare.int_repr(), bare.q_scale(), bare.q_zero_point()]
        scales, zero_points = bare.q_per_channel_scales(), bare.q_per_channel_zero_points()
        return [str(bare.qscheme()), bare.int_repr(), scales, zero_points, bare.q_per_channel_axis()]
    if bare.layout is torch.sparse_coo:
        return [bare.is_coalesced(), bare._indices(), bare._values()]  # noqa: SLF001 - also of one not coalesced
    if bare.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return [bare.crow_indices(), bare.col_indices(), bare.values()]
    return [bare.ccol_indices(), bare.row_indices(), bare.values()]
