"""Where bytes lie in memory."""

from __future__ import annotations

import ctypes


def address_of(buffer: bytes | bytearray | memoryview) -> int | None:
    """The address of its first byte; None where that is not told, as of what may only be read or is empty."""
    view = memoryview(buffer)
    return None if view.readonly or not view.nbytes else ctypes.addressof(ctypes.c_char.from_buffer(view))
