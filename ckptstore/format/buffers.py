"""Bytes in memory, and where they lie."""

from __future__ import annotations

import ctypes

Buffer = bytes | bytearray | memoryview
"""Whatever holds bytes that are only read."""


def address_of(buffer: Buffer) -> int | None:
    """The address of its first byte; None where that is not known, as of what may only be read or is empty."""
    view = memoryview(buffer)
    return None if view.readonly or not view.nbytes else ctypes.addressof(ctypes.c_char.from_buffer(view))
