from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import struct
import sys
import threading
from types import ModuleType

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import CorruptData, PickleRefused, UnknownType, UnsupportedLeaf
from ckptstore.state.values import decode, encode, is_plain
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import SCALARS, Access, Level


def stored(value: object) -> object:
    """The value after a way through msgpack."""
    return decode(msgspec.msgpack.decode(msgspec.msgpack.encode(encode(value, "a/b"))), "a/b")


@given(SCALARS)
def test_every_scalar_comes_back_as_it_was(value: object):
    assert is_plain(value)
    assert_same(stored(value), value)


def test_a_stream_of_bytes_comes_back():
    found = stored([io.BytesIO(b"content")])
    assert isinstance(found, list)
    assert (type(found[0]), found[0].getvalue()) == (io.BytesIO, b"content")


@given(SCALARS)
def test_equal_values_have_equal_encodings(value: object):
    assert encode(value, "p") == encode(stored(value), "p")


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        float("inf"),
        *struct.unpack("<2d", struct.pack("<2Q", 0x7FF0000000000123, 0xFFF8000000000001)),
        "\ud800 lone",
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=dt.timezone(dt.timedelta(hours=1), "CET")),
        dt.datetime.now(dt.UTC),
        Access(0),
        Access.READ | Access.WRITE,
        [1, [True, (None, {b"x", 2.5, "s"})], frozenset({(1, 2), 3})],
        ([],),
        slice(1, (2, "x"), None),
        np.array([(1, 2.5)], [("a", ">i4"), ("b", "f8")])[0],
    ],
)
def test_special_values(value: object):
    assert is_plain(value)
    assert_same(stored(value), value)


def one_by_one(value):
    """The encoded form, of which nothing is decided for several values at once."""
    if isinstance(value, list):
        return [one_by_one(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [one_by_one(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {type(value).__name__: sorted(map(one_by_one, value), key=msgspec.msgpack.encode)}
    return encode(value, "p")


EDGES: list[object] = [
    0,
    127,
    128,
    -1,
    -32,
    -33,
    -(1 << 63),
    -(1 << 63) - 1,
    (1 << 64) - 1,
    1 << 64,
    True,
    None,
    b"x",
    "x",
    "é",
]
EDGES += ["\ud800", "\udc00", 0.0, -0.0, 1e308, float("inf"), -float("inf"), float("nan"), np.int64(3), Level.LOW]
ALIKE = st.one_of(
    st.lists(st.integers(0, 1 << 64), min_size=8),
    st.lists(st.integers(-(1 << 64), 1 << 65)),
    st.lists(st.floats()),
    st.lists(st.text(st.characters(exclude_categories=()))),
    st.lists(st.sampled_from(EDGES)),
)
PLAIN = ALIKE | ALIKE.map(tuple) | ALIKE.map(set) | ALIKE.map(frozenset)


@given(st.lists(st.sampled_from(EDGES) | PLAIN, max_size=12) | st.lists(ALIKE.map(tuple), min_size=8) | PLAIN)
def test_many_at_once_are_encoded_as_one_by_one(values):
    assert is_plain(values)
    assert msgspec.msgpack.encode(encode(values, "p")) == msgspec.msgpack.encode(one_by_one(values))
    assert_same(stored(values), values)


@pytest.mark.parametrize("edge", EDGES, ids=repr)
def test_nor_does_one_of_them_hide_among_the_others(edge):
    for others in ([*range(1, 9)], [0.5] * 8, ["x"] * 8, [None, "x", 0.5, 2, b""] * 2, [True] * 8):
        values = [*others, edge]
        for each in (values, [(other, edge) for other in others], {*values}):
            assert msgspec.msgpack.encode(encode(each, "p")) == msgspec.msgpack.encode(one_by_one(each))


@pytest.mark.parametrize("other", [[1, 2], {1, 2}, frozenset({1}), "ab", b"ab"], ids=repr)
def test_nor_does_something_else_among_tuples_become_one(other):
    values = [*[(1, 2)] * 8, other]
    assert msgspec.msgpack.encode(encode(values, "p")) == msgspec.msgpack.encode(one_by_one(values))
    assert_same(stored(values), values)


def test_what_is_encoded_does_not_change_with_the_value():
    numbers = list(range(9))
    found = encode([numbers, [(1, 2)]], "p")
    numbers.append(9)
    assert found == [[*range(9)], [{"tuple": [1, 2]}]]


def test_ints_of_any_size():
    assert stored(-(1 << 20000)) == -(1 << 20000)


def test_types_that_are_equal_are_told_apart():
    alike = [1, True, 1.0, np.int64(1), np.bool_(True), Level.LOW, 1 + 0j, np.float64(1.0)]
    assert [type(stored(value)) for value in alike] == [type(value) for value in alike]


def test_a_set_is_encoded_the_same_in_any_order():
    names = [f"name{number}" for number in range(50)]
    assert encode(set(names), "p") == encode({*names[25:], *names[:25]}, "p")
    assert encode({8, 0, 16}, "p") == encode({16, 8, 0}, "p")


class OwnInt(int):
    """A subclass of a scalar."""


class OwnStr(str):
    """A subclass of a scalar."""

    __slots__ = ()


class OwnList(list[int]):
    """A subclass of a sequence."""


class OwnTime(dt.datetime):
    """A subclass of a kind."""


class OwnZone(dt.tzinfo):
    """A time zone of its own."""

    def utcoffset(self, moment: dt.datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: dt.datetime | None) -> None:
        return None


class Local:
    """No value."""


@pytest.mark.parametrize(
    "value",
    [
        OwnInt(1),
        OwnStr("a"),
        OwnList([1]),
        OwnTime(2024, 1, 1),
        dt.datetime(2024, 1, 1, tzinfo=OwnZone()),
        Local(),
        Local,
        len,
        lambda: 0,
        threading.Lock(),
        torch.max(torch.ones(2, 2), 0),
        memoryview(b"a"),
        np.array([(1, "x")], [("a", "i4"), ("b", "O")])[0],
    ],
)
def test_an_unknown_type_is_refused_with_its_path(value: object):
    with pytest.raises(UnsupportedLeaf, match=r"cannot store 'model/x': ") as caught:
        encode(value, "model/x")
    assert caught.value.path == "model/x"
    assert type(value).__name__ in str(caught.value)


def test_a_local_enum_is_refused():
    class Hidden(enum.Enum):
        A = 1

    with pytest.raises(UnsupportedLeaf, match="top of a module"):
        encode(Hidden.A, "p")


class Spelt(enum.Enum):
    """Has names and values of its own making."""

    DARK = 1

    @property
    def name(self) -> str:
        return self._name_.lower()

    @property
    def value(self) -> int:
        return 2


class Open(enum.IntEnum):
    """Makes members of what it does not know, as protocols do."""

    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Open:
        assert isinstance(value, int)
        made = int.__new__(cls, value)
        made._name_, made._value_ = "A", value
        return made


def test_an_enum_is_known_by_its_real_name():
    assert stored(Spelt.DARK) is Spelt.DARK
    assert stored([Open.A]) == [Open.A]


def test_a_member_that_its_class_does_not_keep_is_refused():
    with pytest.raises(UnsupportedLeaf, match=r"'p': .*Open; it is no member of its class"):
        encode(Open(7), "p")


def test_pickle_needs_both_sides():
    encoded = encode(OwnInt(5), "p", allow_pickle=True)
    with pytest.raises(PickleRefused, match=r"'p' is a pickle.*allow_pickle=True"):
        decode(encoded, "p")
    again = decode(encoded, "p", allow_pickle=True)
    assert type(again) is OwnInt
    assert again == 5


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(UnsupportedLeaf, match="cannot be pickled either"):
        encode(threading.Lock(), "p", allow_pickle=True)


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    exec("import enum\nclass Shade(enum.Enum):\n    DARK = 1\n", module.__dict__)
    return module


def test_a_class_that_is_not_imported_is_named_and_not_imported(monkeypatch: pytest.MonkeyPatch):
    module = _module("shades_for_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    encoded = encode(module.Shade.DARK, "p")
    assert encoded == {"enum": ["shades_for_a_test:Shade", "DARK"]}
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(UnknownType, match="import shades_for_a_test first"):
        decode(encoded, "p")


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:int", "dataclasses:dataclass", "nowhere", "sys:modules", "antigravity:geohash", ":"]
)
def test_only_real_enums_are_looked_up(name: str):
    with pytest.raises(UnknownType):
        decode({"enum": [name, "A"]}, "p")
    assert "antigravity" not in sys.modules


def test_a_lazy_module_attribute_is_not_touched(monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("lazy_for_a_test")
    module.__getattr__ = lambda name: pytest.fail("code was run")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(UnknownType):
        decode({"enum": ["lazy_for_a_test:Shade", "A"]}, "p")


def test_a_member_that_is_gone_is_named():
    with pytest.raises(UnknownType, match="PURPLE"):
        decode({"enum": ["ckptstore.testing.states:Colour", "PURPLE"]}, "p")


def test_a_kind_of_a_newer_version_is_reported():
    with pytest.raises(UnknownType, match="hologram"):
        decode({"hologram": 1}, "p")


@pytest.mark.parametrize(
    "encoded",
    [
        {},
        {"tuple": [], "set": []},
        {"complex": "x"},
        {"complex": [1.0, 2.0, 3.0]},
        {"int": None},
        {"float": "zz"},
        {"str": 1},
        {"set": [[1]]},
        {"datetime": ["never", 0, None]},
        {"Decimal": "x"},
        {"torch.layout": "round"},
        {"numpy": ["<f8", b""]},
        {"enum": [1, 2]},
        {"path": 3},
        {"torch.Generator": ["cpu", b"short"]},
        {"Fraction": [1, 0]},
        {1: 2},
    ],
)
def test_a_damaged_value_is_never_a_value(encoded: object):
    with pytest.raises((CorruptData, UnknownType), match="'a/b'"):
        decode(encoded, "a/b")


@dataclasses.dataclass
class Plain:
    """A container."""

    a: int


@pytest.mark.parametrize("value", [{}, {1: 2}, torch.ones(1), np.ones(1), [torch.ones(1)], ({},), Plain(1), [[[{}]]]])
def test_containers_are_no_values(value: object):
    assert not is_plain(value)


def test_nesting_without_end_is_not_plain():
    endless: list[object] = []
    endless += [endless, endless]
    assert not is_plain(endless)
