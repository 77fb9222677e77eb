"""Compiled loops as C knows them: what they are given, and how arrays are handed to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

Loop = Callable[..., int]
"""A compiled one. It runs without Python's lock."""


@dataclass(frozen=True)
class Call:
    """A loop that there is one of for each value of some arguments.

    Attributes:
        name: of the function in `source` that makes it.
        given: what it is called with: an address (`a`), a number of 64 bits with a sign (`n`), or a float of 32 (`f`).
            It gives a number.
    """

    name: str
    given: str


_PLAN, _MEMORY = "annnnn", "aaa"
HALVE, CUT = Call("halving", "anaan"), Call("cutting", "anaan")
SQUEEZE, WEIGH = Call("squeezing", "annanaa"), Call("weighing", "nan" + _MEMORY + "a")
PACK = Call("packing", "nan" + _PLAN + _MEMORY + "annan")
UNPACK = Call("unpacking", "n" + "ananann" + "an" + _PLAN + _MEMORY + "an")
WEIGHT, SECOND = Call("weight", "aaa" + "fffff" + "an"), Call("second", "aaa" + "ffff" + "an")


def at(array: npt.NDArray[Any]) -> int:
    """The address of what lies there without gaps. The array must outlive what the address is used for."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of shape {array.shape} and strides {array.strides} lies in pieces")
    address: int = array.ctypes.data
    return address


def into(array: npt.NDArray[Any]) -> int:
    """The same of what a loop fills."""
    if not array.flags.writeable:
        raise ValueError("what is to be filled may only be read")
    return at(array)
