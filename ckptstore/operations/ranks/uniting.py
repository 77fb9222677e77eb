"""One mapping of what several ranks have at one path: the keys of all, and what ranks have beside these.

So `_metadata` of a `state_dict()` names the modules that a rank has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ckptstore.format.manifest import MAPPINGS, Container, Value
from ckptstore.state.paths import segment
from ckptstore.state.values import ENCODED_MAPPINGS

Key = TypeVar("Key")


def joined(known: Container, other: Container) -> Container:
    """What two ranks have at one path, with the keys of both. Raises ValueError where they contradict each other."""
    if known.kind not in MAPPINGS:
        return known
    keys = {segment(key): key for key in (*known.keys, *other.keys)}
    return replace(known, keys=tuple(keys.values()), attributes=_united(known.attributes, other.attributes))


def _united(known: Mapping[Key, Value], other: Mapping[Key, Value]) -> dict[Key, Value]:
    """Both together, also in encoded mappings within. Raises ValueError where they contradict each other."""
    return {**known, **{key: _both(known[key], value) if key in known else value for key, value in other.items()}}


def _both(known: Value, other: Value) -> Value:
    if known == other:
        return known
    kind = _mapping_kind(known)
    if kind is None or kind != _mapping_kind(other):
        raise ValueError("they contradict each other")
    values = _united(_by_key(known[kind]), _by_key(other[kind]))
    return {kind: [part for key, value in values.items() for part in (msgspec.msgpack.decode(key), value)]}


def _mapping_kind(encoded: Value) -> str | None:
    return next(iter(ENCODED_MAPPINGS & encoded.keys()), None) if isinstance(encoded, dict) else None


def _by_key(items: Sequence[Value]) -> dict[bytes, Value]:
    return {msgspec.msgpack.encode(key): value for key, value in zip(items[::2], items[1::2], strict=True)}
