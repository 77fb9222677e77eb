"""Bytes counted, compiled; see `loops`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at


def counting() -> Helper:
    """Adds to 256 counts how often each byte of a plane is found."""

    def count(plane: Any, size: int, counts: Any) -> int:
        found, told = array_at(plane, size, np.uint8), array_at(counts, 256, np.int64)
        for place in range(size):
            told[found[place]] += 1
        return 0

    return count
