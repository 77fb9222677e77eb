"""Memory for payloads, which comes back by itself once nobody looks at it any more.

Fresh memory costs more than the arithmetic in it: what a pack gave back would go to the system and come again page by
page.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from functools import cache
from typing import Any

import numpy as np

from ckptstore.format.codecs.words import Plane

_UNIT = 256 << 10
_LARGEST = 32
"""Units of the largest block that is kept; so many are chunks of the usual size, and twice that."""
_KEPT = 16
"""Of a size: as many as a pack has."""


def block(size: int) -> Plane:
    """At least `size` bytes, of any content. Views of it keep it, and whatever is beneath is used again after them."""
    units = -(-size // _UNIT)
    if not 0 < units <= _LARGEST:
        return np.empty(size, np.uint8)
    kind, free = _blocks(units)
    try:
        memory = free.pop()  # atomic, where looking first would not be
    except IndexError:
        memory = bytearray(units * _UNIT)
    lease: Any = kind.from_buffer(memory)  # numpy's views refer to what is beneath other views, but not beneath this
    weakref.finalize(lease, free.append, memory).atexit = False
    return np.frombuffer(lease, np.uint8)


@cache
def _blocks(units: int) -> tuple[type[ctypes.Array[ctypes.c_char]], deque[bytearray]]:
    return ctypes.c_char * (units * _UNIT), deque(maxlen=_KEPT)
