"""What the bytes of an array are to codecs, by the name of its dtype."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from ckptstore.format.codecs import BYTES, Form

_WIDTHS = (1, 2, 4, 8)
_NATIVE = ("<", "|")
"""Little-endian, or of one byte."""


@lru_cache(1024)  # of many leaves, few have a form of their own
def named_form(library: Literal["torch", "numpy"], dtype: str, itemsize: int) -> Form:
    """Of a dtype as a `TensorEntry` names it: a complex number is two floats, and what is no number is bytes."""
    if library == "torch":
        paired, floating, numeric = dtype.startswith("complex"), "float" in dtype, True
    else:
        order, kind = dtype[:1], dtype[1:2]
        paired, floating, numeric = kind == "c", kind == "f", order in _NATIVE and kind in "biufcmM"
    width = itemsize // 2 if paired else itemsize
    return Form(width, floating=floating or paired) if numeric and width in _WIDTHS else BYTES
