"""Numbers as unsigned words, and what makes words small: signs moved out of the way, differences folded to zero.

Everything works in arrays that the caller gives, because fresh memory costs more than the arithmetic; a `spare` one is
overwritten.
"""

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


def rotate(words: Words, by: int, out: Words, spare: Words) -> None:
    """The first bits of every word moved behind its last one."""
    np.right_shift(words, 8 * words.itemsize - by, out=spare)
    np.left_shift(words, by, out=out)
    np.bitwise_or(out, spare, out=out)


def zigzag(words: Words, spare: Words) -> None:
    """Words taken as signed become small where they are near zero: 0, -1, 1, -2 are 0, 1, 2, 3. In place."""
    signed = words.view(words.dtype.str.replace("u", "i"))
    np.right_shift(signed, 8 * words.itemsize - 1, out=spare.view(signed.dtype))
    np.left_shift(words, 1, out=words)
    np.bitwise_xor(words, spare, out=words)


def unzigzag(words: Words, spare: Words) -> None:
    """The inverse of `zigzag`, in place."""
    np.bitwise_and(words, 1, out=spare)
    np.negative(spare, out=spare)
    np.right_shift(words, 1, out=words)
    np.bitwise_xor(words, spare, out=words)


def difference(words: Words, before: Words, out: Words, spare: Words) -> Words:
    """Words less others, small where they are near to each other."""
    np.subtract(words, before, out=out)
    zigzag(out, spare)
    return out


def add_difference(words: Words, before: Words, spare: Words) -> None:
    """The inverse, in place: of a difference and what it is to."""
    unzigzag(words, spare)
    np.add(words, before, out=words)


def sampled(words: Words) -> Words:
    """A copy of some runs of `words` from all over, or all of them when they are few."""
    if len(words) <= _RUNS * _RUN:
        return words.copy()
    starts = range(0, len(words) - _RUN + 1, (len(words) - _RUN) // (_RUNS - 1))
    return np.concatenate([words[start : start + _RUN] for start in starts])
