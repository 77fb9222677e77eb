"""How much memory Python holds during a call."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from ckptstore.chunkstore.later import LOOPS


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that Python held at once during `work`, beyond those before it.

    What threads compile beside it, as other tests asked for, would count: it ends before.
    """
    LOOPS.settle()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
