"""Plain values on their way between planners and the store."""

from __future__ import annotations

import io
import pickle

import torch

from ckptstore.errors import PickleRefused, UnsupportedLeaf
from ckptstore.format.manifest import Value
from ckptstore.state.values import encode


class PlainValue(io.BytesIO):
    """A value as it is; its bytes, if any, are what DCP's own planners read."""

    def __init__(self, value: object, saved: bytes = b"") -> None:
        super().__init__(saved)
        self.value = value


def encoded(path: str, given: object, *, allow_pickle: bool) -> Value:
    """What the store keeps of what a planner gave: typed, where that can be told without running code.

    Raises UnsupportedLeaf for what can not, unless `allow_pickle`; then those bytes are kept.
    """
    if isinstance(given, PlainValue):
        return encode(given.value, path, allow_pickle=allow_pickle)
    if not isinstance(given, io.BytesIO):
        raise UnsupportedLeaf(path, f"a {type(given).__name__} of the planner", "planners give tensors or BytesIO")
    try:
        given.seek(0)
        return encode(torch.load(given, map_location="cpu", weights_only=True), path)
    except (pickle.UnpicklingError, RuntimeError, UnsupportedLeaf, EOFError, ValueError) as error:
        if allow_pickle:
            return encode(io.BytesIO(given.getvalue()), path)
        advice = "save with StoreSavePlanner, or with allow_pickle=True"
        raise UnsupportedLeaf(
            path, f"a pickle of DCP's, not of a plain value ({type(error).__name__})", advice
        ) from error


def given_back(path: str, value: object, *, allow_pickle: bool) -> io.BytesIO:
    """What planners read of a value of the store. Raises PickleRefused for bytes that a planner made."""
    if type(value) is not io.BytesIO:
        return PlainValue(value, _saved(value))
    if not allow_pickle:
        raise PickleRefused(f"{path!r} is a pickle, which can run any code: pass allow_pickle=True if you trust it")
    return io.BytesIO(value.getvalue())


def _saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
