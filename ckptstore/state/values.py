"""Plain Python values to and from their encoded form, exactly; see `ckptstore.format.manifest.Value`.

Types are taken at their word: a bool is no int, an IntEnum no int, and a subclass that is not known is refused
instead of being stored as what it derives from. Decoding imports no module and runs no code of a stored class.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, cast

import msgspec

from ckptstore.errors import CorruptData, PickleRefused, UnknownType, UnsupportedLeaf
from ckptstore.format.manifest import Value
from ckptstore.state.kinds import Kind, kind_named, kind_of
from ckptstore.state.pickling import pickle_of

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_SEQUENCES = frozenset({list, tuple, set, frozenset})
ENCODED_MAPPINGS = frozenset({"dict", "OrderedDict"})
"""Kinds of mappings that an encoded value may hold."""
_SETS = frozenset({"set", "frozenset"})
_MOST_NESTED = 32
_LONG = 8
_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 64) - 1
_ADVICE = "store plain values and tensors, give its class state_dict and load_state_dict, or pass allow_pickle=True"

_sort_key = msgspec.msgpack.encode


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a value is one leaf: a scalar of a known kind, or a sequence or set of such, not nested too deeply."""
    cls = type(value)
    if cls in _SEQUENCES:
        return _all_plain(cast("Collection[object]", value), depth)
    if cls in _SCALARS:
        return True
    kind = kind_of(value)
    return kind is not None and kind.name not in ENCODED_MAPPINGS


def encode(value: object, path: str, *, allow_pickle: bool = False) -> Value:
    """The encoded form of a plain value. Raises UnsupportedLeaf naming the path and type."""
    cls = type(value)
    if value is None or cls is bool or cls is bytes:
        return value
    if cls is list:
        return _encode_list(cast("list[object]", value), path, allow_pickle=allow_pickle)
    if cls in _SCALARS:
        return _encode_scalar(value)
    kind = kind_of(value)
    if kind is not None:
        return _encode_kind(kind, value, path)
    if allow_pickle:
        return pickled(value, path)
    raise UnsupportedLeaf(path, type_name(value), _ADVICE)


def pickled(value: object, path: str) -> Value:
    """The encoded form of any value, as a pickle. Raises UnsupportedLeaf when it cannot be pickled."""
    try:
        return {"pickle": pickle_of(value)}
    except Exception as error:  # a class's own code runs here and may raise anything
        raise UnsupportedLeaf(path, type_name(value), f"it cannot be pickled either: {error}") from error


def decode(encoded: Value, path: str, *, allow_pickle: bool = False) -> object:
    """The value of an encoded form.

    Raises:
        PickleRefused: a pickle, and `allow_pickle` was not given.
        UnknownType: a class that this process has not imported, or a kind of a newer ckptstore.
        CorruptData: no encoded form at all.
    """
    try:
        return _decode(encoded, path, allow_pickle=allow_pickle)
    except RecursionError as error:
        raise CorruptData(f"{path!r}: its value is nested too deeply") from error


def type_name(value: object) -> str:
    """How messages name a value's type."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _decode(encoded: Value, path: str, *, allow_pickle: bool) -> object:
    if type(encoded) is list:
        return [_decode(item, path, allow_pickle=allow_pickle) for item in encoded]
    if type(encoded) in _SCALARS:
        return encoded
    if type(encoded) is not dict or len(encoded) != 1:
        raise CorruptData(f"{path!r}: its value is no encoded one")
    ((name, inner),) = encoded.items()
    if name == "pickle":
        return _unpickled(inner, path, allow_pickle=allow_pickle)
    try:
        if name in _SPECIAL:
            return _SPECIAL[name](inner)
        kind = kind_named(name)
        if kind is not None:
            return kind.unpack(_decode(inner, path, allow_pickle=allow_pickle), path)
    except (
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
        OSError,
        struct.error,
    ) as error:
        raise CorruptData(f"{path!r}: its {name} is damaged: {error}") from error
    raise UnknownType(f"{path!r} is a {name!r}, which this version of ckptstore does not know: use a newer one")


def _all_plain(values: Collection[object], depth: int) -> bool:
    types = set(map(type, values))
    if types <= _SCALARS:
        return True
    if depth >= _MOST_NESTED:
        return False
    if types <= _SEQUENCES and _SCALARS.issuperset(map(type, _items(values))):
        return True
    return all(is_plain(item, depth + 1) for item in values)


def _encode_list(values: list[object], path: str, *, allow_pickle: bool) -> list[Value]:
    """Most long lists are all alike: then nothing is decided for each item."""
    if len(values) >= _LONG:
        if _stand_for_themselves(values):
            return list(values)
        if set(map(type, values)) == {tuple} and _stand_for_themselves(list(_items(values))):
            return [{"tuple": list(item)} for item in cast("list[tuple[object, ...]]", values)]
    return [encode(item, path, allow_pickle=allow_pickle) for item in values]


def _items(sequences: Collection[object]) -> Iterator[object]:
    return chain.from_iterable(cast("Collection[Collection[object]]", sequences))


def _stand_for_themselves(values: Collection[Any]) -> bool:
    """Whether all are scalars without a form of their own; may deny it of floats of which infinite ones cancel out."""
    types = set(map(type, values))
    if not types <= _SCALARS:
        return False
    alone = len(types) == 1
    return all(
        check(values if alone else [value for value in values if type(value) is cls])
        for cls, check in _CHECKS.items()
        if cls in types
    )


_CHECKS: dict[type, Callable[[Collection[Any]], bool]] = {
    int: lambda values: min(values) >= _LEAST_INT and max(values) <= _MOST_INT,
    float: lambda values: not math.isnan(sum(values)),
    str: lambda values: all(map(str.isascii, values)),
}


def _encode_scalar(value: Any) -> Value:
    """An int, float or str, in a form of its own where msgpack has none or where NaN would not equal itself."""
    if type(value) is int and not _LEAST_INT <= value <= _MOST_INT:
        return {"int": hex(value)}
    if type(value) is float and math.isnan(value):
        return {"float": struct.pack(">d", value).hex()}
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"str": value.encode("utf-8", "surrogatepass")}
    return value


_SPECIAL: dict[str, Callable[[Any], object]] = {
    "int": lambda text: int(text, 16),
    "float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "str": lambda data: data.decode("utf-8", "surrogatepass"),
}


def _encode_kind(kind: Kind, value: object, path: str) -> Value:
    try:
        packed = kind.pack(value)
    except (TypeError, LookupError) as error:
        raise UnsupportedLeaf(path, type_name(value), str(error)) from None
    inner = encode(packed, path)
    if kind.name in _SETS:
        _sort(inner)
    return {kind.name: inner}


def _sort(encoded: list[Any]) -> None:
    """By their msgpack; of natural numbers that is their order."""
    natural = set(map(type, encoded)) == {int} and min(encoded) >= 0
    encoded.sort(key=None if natural else _sort_key)


def _unpickled(data: bytes, path: str, *, allow_pickle: bool) -> object:
    if not allow_pickle:
        advice = "pass allow_pickle=True if you trust it (to export, --allow-pickle)"
        raise PickleRefused(f"{path!r} is a pickle, which can run any code: {advice}")
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise UnknownType(f"{path!r} is a pickle that needs what is not here: {error}") from error
