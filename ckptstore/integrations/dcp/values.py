"""Plain values on their way between planners and the store."""

from __future__ import annotations

import io
from contextlib import suppress

import torch

from ckptstore.errors import StateError, UnsupportedLeaf
from ckptstore.format.manifest import Value
from ckptstore.integrations.dcp.names import is_taken_apart
from ckptstore.integrations.saved import plain_values_allowed, refused_type
from ckptstore.state.tree import Flat, flatten_at
from ckptstore.state.values import encode, pickled, type_name


class PlainValue(io.BytesIO):
    """A value as it is; its bytes, if any, are what DCP's own planners read."""

    def __init__(self, value: object, saved: bytes = b"") -> None:
        super().__init__(saved)
        self.value = value


def taken(name: str, path: str, given: object, *, allow_pickle: bool) -> Value | Flat:
    """What the store keeps of what a planner gave, where that can be found out without running code.

    That is its encoded form, or what it is made of: arrays, and containers of what has no encoded form together.

    Raises UnsupportedLeaf for what is neither, unless `allow_pickle`; then it is kept as a pickle.
    """
    if isinstance(given, PlainValue):
        return _taken(name, path, given.value, allow_pickle=allow_pickle)
    if not isinstance(given, io.BytesIO):
        raise UnsupportedLeaf(name, f"a {type(given).__name__} of the planner", "planners give tensors or BytesIO")
    try:
        return _taken(name, path, _loaded(name, given), allow_pickle=False)
    except StateError:
        if allow_pickle:
            return pickled(io.BytesIO(given.getvalue()), name)
        raise


def _taken(name: str, path: str, value: object, *, allow_pickle: bool) -> Value | Flat:
    with suppress(UnsupportedLeaf):
        return encode(value, name)
    flat = flatten_at(path, value, allow_pickle=allow_pickle)
    refused = _refused(flat, path)
    if refused is None:
        return flat
    if allow_pickle:
        return encode(value, name, allow_pickle=True)
    raise refused


def _refused(flat: Flat, path: str) -> UnsupportedLeaf | None:
    """Why what a value is made of would not come back at its path, if so."""
    for inner, held in flat.stateful.items():
        advice = "give its state_dict(), as DCP itself asks only what is on top for it; or pass allow_pickle=True"
        return UnsupportedLeaf(inner, type_name(held), advice)
    if is_taken_apart(path, flat.containers, flat.leaves):
        return UnsupportedLeaf(
            path, "a dict or list of several leaves", "leave flatten_state_dict=False out, so that DCP sees them"
        )
    for inner in flat.sharded:
        return UnsupportedLeaf(inner, "a DTensor in what DCP takes for one value", "put it into a dict or list")
    return None


def _loaded(name: str, given: io.BytesIO) -> object:
    given.seek(0)
    try:
        with plain_values_allowed():
            return torch.load(given, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of a planner make their reader raise
        kind = refused_type(error) or f"a pickle of DCP's, not of a plain value ({type(error).__name__})"
        advice = "save with StoreSavePlanner, which knows all types of store.commit, or with allow_pickle=True"
        raise UnsupportedLeaf(name, kind, advice) from error


def given_back(value: object) -> PlainValue:
    """What planners read of a plain value of the store."""
    return PlainValue(value, _saved(value))


def given_back_unpickled(value: object) -> io.BytesIO:
    """What planners read of what was stored as a pickle: an object, or the bytes that a planner made of one."""
    return io.BytesIO(value.getvalue()) if type(value) is io.BytesIO else given_back(value)


def _saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
