"""Memory for payloads of chunks of the usual size, which comes back once nobody looks at it any more.

Fresh memory costs more than the arithmetic in it: what a pack gave back would go to the system and come again page by
page.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np

from ckptstore.format.codecs.words import Plane

_SIZES = (3 << 20, (4 << 20) + (1 << 18))
"""Of chunks of 4 MiB: bfloat16 alone is two thirds of that, float32 four fifths."""
_USED = 0.75
"""What a payload must fill of a block, since the rest is held with it."""
_KEPT = 12
_FREE = {size: deque[bytearray](maxlen=_KEPT) for size in _SIZES}


def block(size: int) -> Plane:
    """At least `size` bytes, of any content. Views of it keep it, and whatever is beneath is used again after them."""
    fitting = next((each for each in _SIZES if _USED * each <= size <= each), None)
    if fitting is None:
        return np.empty(size, np.uint8)
    free = _FREE[fitting]
    try:
        memory = free.pop()  # atomic, where looking first would not be
    except IndexError:
        memory = bytearray(fitting)
    # numpy's views refer to what is beneath other views, but not beneath this
    lease: Any = (ctypes.c_char * fitting).from_buffer(memory)
    weakref.finalize(lease, free.append, memory).atexit = False
    return np.frombuffer(lease, np.uint8)


def cut_off(memory: Plane, size: int) -> memoryview:
    """The first bytes of a block; the rest is given back where it can be."""
    if memory.base is None:
        memory.resize(size, refcheck=False)
    elif size < _USED * len(memory):
        return memory[:size].copy().data
    return memory[:size].data
