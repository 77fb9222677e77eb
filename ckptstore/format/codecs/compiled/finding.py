"""Where compiled loops come from: what some process has compiled and kept, or numba."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from ckptstore.format.codecs.compiled.calls import Call, Loop
from ckptstore.format.codecs.compiled.machine import loaded, machine_code
from ckptstore.format.codecs.making import MAKING


@cache
def kept(call: Call, *arguments: int) -> Loop | None:
    """A loop that some process has compiled; None when there is none."""
    code = MAKING.kept.read(_name(call, arguments))
    return loaded(code, call) if code is not None else None


@cache
def made(call: Call, *arguments: int) -> Loop | None:
    """A loop, compiled and kept unless it is there; None, with a warning, when numba does not work."""
    name = _name(call, arguments)
    code = MAKING.kept.read(name)
    if code is not None:
        return loaded(code, call)
    code = _compiled(call, arguments)
    if code is None:
        return None
    loop = loaded(code, call)
    MAKING.kept.write(name, code)
    return loop


def _name(call: Call, arguments: tuple[int, ...]) -> str:
    return "-".join([call.name, *map(str, map(int, arguments))])


def _compiled(call: Call, arguments: tuple[int, ...]) -> bytes | None:
    source = _source()
    if source is None:
        return None
    try:
        return machine_code(*source.llvm_of(source.MAKERS[call.name](*arguments), call))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, numpy does the same
        _warn(error)
        return None


@cache
def _source() -> ModuleType | None:
    """What takes numba."""
    try:
        from ckptstore.format.codecs.compiled import source
    except Exception as error:  # noqa: BLE001 - the same
        if not (isinstance(error, ModuleNotFoundError) and error.name == "numba"):
            _warn(error)
        return None
    return source


def _warn(error: Exception) -> None:
    warnings.warn(f"numba does not work, codecs go on without it: {error!r}", stacklevel=3)
