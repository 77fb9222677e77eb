"""How innermost loops are compiled by numba for the processor at hand.

The compiler makes vectors of loops whose every step is cast to the width it has, and whose shifts and masks are
constants; so there is one loop for each. Memory need not be aligned, since payloads are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from ckptstore.format.codecs.words import word_type

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined] # set when it is imported
    raise ImportError("numba is told not to compile")

Loop = Callable[..., Any]
_WITHOUT_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(loop: Loop, signature: Any) -> Loop:
    """Without Python's lock, and what is divided by zero is as numpy has it.

    Not kept on disk: numba's cache mixes up variants that several processes store at once.
    """
    made: Loop = numba.njit(signature, nogil=True, error_model="numpy")(loop)
    return made


def helping(loop: Loop, signature: Any) -> Loop:
    """To be called by compiled loops alone, which spares compiling how Python calls it."""
    made: Loop = numba.njit(signature, **_WITHOUT_WRAPPERS)(loop)
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
