"""Numbers as unsigned words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.unsignedinteger[Any]]
Plane = npt.NDArray[np.uint8]

WIDTHS = (1, 2, 4, 8)
BLOCK_WORDS = 1 << 17
"""How many words are worked on at a time: they fit a core's own cache, and a plane of them is one block of zstd's."""

_RUNS, _RUN = 8, 1024


def word_type(width: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Little-endian unsigned words of `width` bytes."""
    return np.dtype(f"<u{width}")


def words_of(data: memoryview, width: int) -> tuple[Words, memoryview]:
    """The whole words at the beginning of `data`, sharing its memory, and the bytes that are left."""
    count = len(data) // width
    return np.ndarray(count, word_type(width), data), data[count * width :]


def signed(words: Words) -> npt.NDArray[np.signedinteger[Any]]:
    """The same memory as signed numbers."""
    return words.view(words.dtype.str.replace("u", "i"))


def sampled(words: Words) -> Words:
    """A copy of some runs of `words` from all over, or all of them when they are few."""
    if len(words) <= _RUNS * _RUN:
        return words.copy()
    starts = range(0, len(words) - _RUN + 1, (len(words) - _RUN) // (_RUNS - 1))
    return np.concatenate([words[start : start + _RUN] for start in starts])
