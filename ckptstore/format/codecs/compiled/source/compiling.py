"""How innermost loops are compiled by numba for the processor at hand. Importing this takes numba.

The compiler makes vectors of loops whose every step is cast to the width it has, and whose shifts and masks are
constants; so there is one loop for each. Memory need not be aligned, since payloads are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from ckptstore.format.codecs.compiled.calls import Call
from ckptstore.format.codecs.words import word_type

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined] # set when it is imported
    raise ModuleNotFoundError("numba is told not to compile", name="numba")

Helper = Callable[..., Any]
_GIVEN = {"a": types.voidptr, "n": types.int64, "f": types.float32}
_NUMPYS: dict[str, Any] = {"error_model": "numpy"}  # for what is divided by zero
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def llvm_of(loop: Helper, call: Call) -> tuple[str, str]:
    """What LLVM's own language says of a loop that is called so, and which of its functions is called."""
    made = numba.cfunc(types.int64(*map(_GIVEN.__getitem__, call.given)), **_NUMPYS)(loop)
    return made.inspect_llvm(), made.native_name


def helping(loop: Helper, signature: Any) -> Helper:
    """To be called by compiled loops alone, which spares compiling how Python calls it."""
    made: Helper = numba.njit(signature, **_NUMPYS, **_WITHOUT_WRAPPERS)(loop)
    return made


def kind(width: int) -> Any:
    """A word."""
    return numba.from_dtype(word_type(width))


def read(width: int, dims: int = 1) -> Any:
    """Words that are looked at."""
    return types.Array(kind(width), dims, "C", readonly=True, aligned=False)


def given(width: int, dims: int = 1) -> Any:
    """Words that are filled."""
    return types.Array(kind(width), dims, "C", aligned=False)


@intrinsic
def _unaligned(_typing: Any, array: Any) -> Any:
    """The same array; the compiler is told that it need not lie at a multiple of its items' size."""

    def build(_context: Any, _builder: Any, _signature: Any, arguments: Any) -> Any:
        return arguments[0]

    return types.Array(array.dtype, array.ndim, "C", aligned=False)(array), build


@numba.njit(**_WITHOUT_WRAPPERS)  # type: ignore[untyped-decorator]
def array_at(address: Any, shape: Any, kind: Any) -> Any:
    """What lies there, to be read and filled."""
    return _unaligned(carray(address, shape, kind))  # type: ignore[call-arg] # numba gives the first one
