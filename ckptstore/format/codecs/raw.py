"""The bytes themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.base import BYTES, Form


class Raw:
    """No encoding: the payload is the chunk, and can be read or mapped in place."""

    number = 0
    name = "raw"

    def encode(self, raw: memoryview, form: Form = BYTES, bases: Sequence[memoryview] = ()) -> memoryview:
        """`raw` itself, not copied."""
        return raw

    def decode(self, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Copy. Raises CorruptData when the lengths differ."""
        if len(payload) != len(out):
            raise CorruptData(f"a raw payload of {len(payload)} bytes stands for {len(out)}")
        out[:] = payload
