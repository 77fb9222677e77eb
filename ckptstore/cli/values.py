"""Encoded plain values as Python would write them, from their encoded form alone: torch is not needed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Any

from ckptstore.format.manifest import Value

_MOST_BYTES = 16


def shown(value: Value) -> str:
    """A value as text, such as `(0.9, 0.999)` or `torch.float32`. Long bytes are cut."""
    try:
        return _shown(value)
    except RecursionError:
        return "<a value in too many others>"


def _shown(value: Value) -> str:
    if isinstance(value, list):
        return f"[{_listed(value)}]"
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, dict) and len(value) == 1:
        ((kind, inner),) = value.items()
        return _kind(kind, inner)
    return repr(value)


def _kind(kind: str, inner: Value) -> str:
    try:
        return _FORMS[kind](inner) if kind in _FORMS else f"{kind}({_arguments(inner)})"
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, struct.error):
        return f"<{kind}>"  # damaged, or of a newer ckptstore


def _listed(items: list[Value]) -> str:
    return ", ".join(map(_shown, items))


def _arguments(inner: Value) -> str:
    return _listed(inner) if isinstance(inner, list) else _shown(inner)


def _bytes(value: bytes) -> str:
    return repr(value) if len(value) <= _MOST_BYTES else f"{value[:_MOST_BYTES]!r}… {len(value)} bytes"


def _pairs(flat: list[Value]) -> str:
    return ", ".join(f"{_shown(key)}: {_shown(value)}" for key, value in zip(flat[::2], flat[1::2], strict=True))


def _moment(inner: list[Any]) -> str:
    text, _, zone = inner
    return text if zone is None else f"{text} {_zone(*zone['dict'])}"


def _zone(kind: str, inner: Any) -> str:
    return str(inner) if kind == "zoneinfo" else str(timezone(timedelta(*inner[0]["timedelta"])))


def _enum(inner: list[Any]) -> str:
    name, member = inner[0].rpartition(":")[2], inner[1]
    return f"{name}.{member}" if isinstance(member, str) else f"{name}({_shown(member)})"


def _numpy_scalar(inner: list[Any]) -> str:
    dtype, data = inner
    if dtype[:1] in "[{":
        return f"numpy.void({_bytes(data)})"
    import numpy as np

    found = np.frombuffer(data, dtype)[0]
    return f"numpy.{found.dtype.name}({found})"


_FORMS: dict[str, Callable[[Any], str]] = {
    "int": lambda inner: str(int(inner, 16)),
    "float": lambda inner: repr(struct.unpack(">d", bytes.fromhex(inner))[0]),
    "str": lambda inner: repr(inner.decode("utf-8", "surrogatepass")),
    "tuple": lambda inner: f"({_listed(inner)}{',' * (len(inner) == 1)})",
    "set": lambda inner: f"{{{_listed(inner)}}}" if inner else "set()",
    "frozenset": lambda inner: f"frozenset({{{_listed(inner)}}})" if inner else "frozenset()",
    "dict": lambda inner: f"{{{_pairs(inner)}}}",
    "OrderedDict": lambda inner: f"OrderedDict({{{_pairs(inner)}}})",
    "complex": lambda inner: repr(complex(*inner)),
    "ellipsis": lambda inner: "...",
    "path": lambda inner: f"{inner[0]}({inner[1]!r})",
    "datetime": _moment,
    "time": _moment,
    "date": str,
    "timedelta": lambda inner: f"timedelta(days={inner[0]}, seconds={inner[1]}, microseconds={inner[2]})",
    "enum": _enum,
    "torch.Size": lambda inner: f"torch.Size({inner})",
    "torch.dtype": lambda inner: f"torch.{inner}",
    "torch.layout": lambda inner: f"torch.{inner}",
    "torch.memory_format": lambda inner: f"torch.{inner}",
    "torch.qscheme": lambda inner: f"torch.{inner}",
    "torch.Generator": lambda inner: f"<torch.Generator on {inner[0]}, {len(inner[1])} bytes>",
    "numpy": _numpy_scalar,
    "numpy.dtype": lambda inner: f"numpy.dtype({inner!r})",
    "pickle": lambda inner: f"<pickle, {len(inner)} bytes>",
}
