"""Progress of long operations: a callback in code; what a terminal shows is the CLI's business."""

from __future__ import annotations

from collections.abc import Callable

from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import InvalidArgument
from ckptstore.locks import Lock

ProgressCallback = Callable[[str, int, int], None]
"""Called with the stage, the bytes done and the bytes in all; from any thread, one call at a time."""


def meter(callback: ProgressCallback | None, stage: str, total: int) -> Advance:
    """An `Advance` that adds up and calls the callback; with nothing done only at first."""
    check_callback(callback)
    if callback is None:
        return ignore
    lock = Lock()
    done, begun = 0, False

    def advance(count: int) -> None:
        nonlocal done, begun
        with lock:
            if not count and begun:
                return
            done, begun = done + count, True
            callback(stage, done, total)

    return advance


def check_callback(callback: object) -> None:
    """Raises InvalidArgument for what is neither None nor can be called."""
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"progress={callback!r}: give a function of stage, bytes done and bytes in all")
