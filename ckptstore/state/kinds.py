"""The types of plain values beyond what msgpack has: each is stored as a simpler value under the name of its kind."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import io
import pathlib
import uuid
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ckptstore.errors import UnknownType
from ckptstore.state.classes import class_name, find_enum
from ckptstore.state.dtypes import dtype_name, numpy_dtype, torch_dtype


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are stored.

    Attributes:
        name: of the kind, in the encoded form.
        pack: the value as a simpler one; LookupError or TypeError when this very value has none.
        unpack: the value of the simpler one; also gets the logical path, for messages.
    """

    name: str
    pack: Callable[[Any], object]
    unpack: Callable[[Any, str], object]


def kind_of(value: object) -> Kind | None:
    """The kind of a value, or None. Subclasses of a type that has one have none of their own."""
    cls = type(value)
    found = _BY_TYPE.get(cls)
    if found is not None:
        return found
    if isinstance(value, enum.Enum):
        return _ENUM
    if isinstance(value, np.generic) and cls.__module__ == "numpy" and cls is value.dtype.type:
        return _NUMPY_SCALAR
    return _NUMPY_DTYPE if isinstance(value, np.dtype) else None


def kind_named(name: str) -> Kind | None:
    """The kind of a name, or None."""
    return _BY_NAME.get(name)


def _pack_timezone(zone: dt.tzinfo | None) -> object:
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        return {"timezone": list(zone.__getinitargs__())}  # type: ignore[attr-defined]
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return {"zoneinfo": zone.key}
    raise TypeError(f"its time zone is a {type(zone).__name__}")


def _unpack_timezone(packed: dict[str, Any] | None) -> dt.tzinfo | None:
    if packed is None:
        return None
    return zoneinfo.ZoneInfo(packed["zoneinfo"]) if "zoneinfo" in packed else dt.timezone(*packed["timezone"])


def _pack_moment(value: dt.datetime | dt.time) -> object:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _pack_timezone(value.tzinfo)]


def _unpack_moment(cls: type[dt.datetime | dt.time]) -> Callable[[Any, str], object]:
    return lambda packed, _: cls.fromisoformat(packed[0]).replace(fold=packed[1], tzinfo=_unpack_timezone(packed[2]))


def _unpack_path(packed: list[str], _: str) -> pathlib.PurePath:
    flavour, text = packed
    pure = pathlib.PureWindowsPath if "Windows" in flavour else pathlib.PurePosixPath
    here = type(pathlib.Path())
    return here(text) if here.__name__ == flavour else pure(text)


def _pack_enum(value: enum.Enum) -> object:
    name = class_name(type(value))
    if name is None:
        raise LookupError("its class is not found under its name: define it at the top of a module")
    if type(value).__members__.get(value._name_) is value:  # `name` may be a property of its own
        return [name, value._name_]
    if isinstance(value, enum.Flag):
        return [name, value._value_]
    raise LookupError("it is no member of its class, which could not find it again: store its value")


def _unpack_enum(packed: list[Any], path: str) -> enum.Enum:
    cls, member = find_enum(packed[0], path), packed[1]
    if isinstance(member, str) and member in cls.__members__:
        return cls.__members__[member]
    if isinstance(member, int) and issubclass(cls, enum.Flag):
        known = cls._value2member_map_.get(member)
        return known or enum.Flag._missing_.__func__(cls, member)  # type: ignore[attr-defined]
    raise UnknownType(f"{path!r} needs the member {member!r} of {packed[0]}, which it has no more")


def _pack_numpy_scalar(value: np.generic) -> object:
    return [dtype_name(value.dtype), value.tobytes()]


def _unpack_numpy_scalar(packed: list[Any], path: str) -> object:
    return np.ndarray((), numpy_dtype(path, packed[0]), buffer=bytearray(packed[1]))[()]


def _unpack_generator(packed: list[Any], _: str) -> torch.Generator:
    device, state = packed
    generator = torch.Generator(device)
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _unpack_dict(cls: type[dict[Any, Any]]) -> Callable[[Any, str], object]:
    return lambda packed, _: cls(zip(packed[::2], packed[1::2], strict=True))


def _pack_dict(value: dict[Any, Any]) -> object:
    return [part for item in value.items() for part in item]


def _torch_constant(cls: type) -> Kind:
    name = f"torch.{cls.__name__}"
    known = {str(found): found for found in vars(torch).values() if type(found) is cls}
    return Kind(name, lambda value: str(value).removeprefix("torch."), lambda packed, _: known[f"torch.{packed}"])


def _as(cls: Callable[..., object]) -> Callable[[Any, str], object]:
    return lambda packed, _: cls(packed)


def _spread(cls: Callable[..., object]) -> Callable[[Any, str], object]:
    return lambda packed, _: cls(*packed)


_PATH = Kind("path", lambda value: [type(value).__name__, str(value)], _unpack_path)
_ENUM = Kind("enum", _pack_enum, _unpack_enum)
_NUMPY_SCALAR = Kind("numpy", _pack_numpy_scalar, _unpack_numpy_scalar)
_NUMPY_DTYPE = Kind("numpy.dtype", dtype_name, lambda packed, path: numpy_dtype(path, packed))

_BY_TYPE: dict[type, Kind] = {
    tuple: Kind("tuple", list, _as(tuple)),
    set: Kind("set", list, _as(set)),
    frozenset: Kind("frozenset", list, _as(frozenset)),
    dict: Kind("dict", _pack_dict, _unpack_dict(dict)),
    OrderedDict: Kind("OrderedDict", _pack_dict, _unpack_dict(OrderedDict)),
    complex: Kind("complex", lambda value: [value.real, value.imag], _spread(complex)),
    bytearray: Kind("bytearray", bytes, lambda packed, _: bytearray(memoryview(packed))),
    io.BytesIO: Kind("BytesIO", io.BytesIO.getvalue, lambda packed, _: io.BytesIO(memoryview(packed))),
    range: Kind("range", lambda value: [value.start, value.stop, value.step], _spread(range)),
    slice: Kind("slice", lambda value: [value.start, value.stop, value.step], _spread(slice)),
    type(...): Kind("ellipsis", lambda _: None, lambda *_: ...),
    fractions.Fraction: Kind(
        "Fraction", lambda value: [value.numerator, value.denominator], _spread(fractions.Fraction)
    ),
    decimal.Decimal: Kind("Decimal", str, _as(decimal.Decimal)),
    uuid.UUID: Kind("UUID", str, _as(uuid.UUID)),
    dt.datetime: Kind("datetime", _pack_moment, _unpack_moment(dt.datetime)),
    dt.time: Kind("time", _pack_moment, _unpack_moment(dt.time)),
    dt.date: Kind("date", dt.date.isoformat, _as(dt.date.fromisoformat)),
    dt.timedelta: Kind("timedelta", lambda it: [it.days, it.seconds, it.microseconds], _spread(dt.timedelta)),
    pathlib.PosixPath: _PATH,
    pathlib.WindowsPath: _PATH,
    pathlib.PurePosixPath: _PATH,
    pathlib.PureWindowsPath: _PATH,
    torch.Size: Kind("torch.Size", list, _as(torch.Size)),
    torch.device: Kind("torch.device", str, _as(torch.device)),
    torch.dtype: Kind("torch.dtype", dtype_name, lambda packed, path: torch_dtype(path, packed)),
    torch.layout: _torch_constant(torch.layout),
    torch.memory_format: _torch_constant(torch.memory_format),
    torch.qscheme: _torch_constant(torch.qscheme),
    torch.Generator: Kind(
        "torch.Generator", lambda it: [str(it.device), it.get_state().numpy().tobytes()], _unpack_generator
    ),
    np.str_: Kind("numpy.str", str, _as(np.str_)),
    np.bytes_: Kind("numpy.bytes", bytes, _as(np.bytes_)),
}
_BY_NAME = {kind.name: kind for kind in (*_BY_TYPE.values(), _ENUM, _NUMPY_SCALAR, _NUMPY_DTYPE)}
