"""A block of words to the parts of a payload by one compiled call, while it is in a core's cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ckptstore.format.codecs.compiled.plans import COMMON, GAPS, OTHERS, SPLITS, CompiledPlan
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, read
from ckptstore.format.codecs.compiled.source.cutting import cutter, halver
from ckptstore.format.codecs.compiled.source.frames import coding
from ckptstore.format.codecs.compiled.source.plans import ADDRESS, INT, MEMORY, PLAN, memory_at, plan_at
from ckptstore.format.codecs.compiled.source.squeezing import squeezer_to_rows
from ckptstore.format.codecs.layout import LENGTH, WHOLE_BYTES
from ckptstore.format.codecs.squeezing import WHOLE
from ckptstore.format.codecs.words import Plane, Words, word_type

_FULL = 0
_LENGTH = LENGTH.itemsize
_CARRY_OF_TWO, _CARRY_OF_FOUR = 1 << 7, 1 << 15
"""What is added to words before their upper half is taken, where the lower one is signed."""
_OUT = given(1), INT, given(4), INT
"""A payload, where it ends, the lengths of parts, and which of them is next."""


def packing(width: int) -> Helper:
    """What puts the parts of a block of words of a width behind what a payload has already, and stores their lengths.

    It gives where the payload ends then, or 0 where there was no room.
    """
    make, word = {1: _of_bytes, 2: _of_twos, 4: _of_fours}[width], word_type(width).type
    pack = helping(make(), INT(ADDRESS, read(width), PLAN, *MEMORY, given(1), INT, given(4)))

    def entry(
        zstd: Any, words: Any, count: int,
        ways: Any, planes: int, split: int, center: int, kept: int, differences: int,
        rows: Any, spare: Any, halves: Any, out: Any, room: int, end: int, lengths: Any, parts: int,
    ) -> Any:  # fmt: skip
        plan = plan_at(ways, planes, split, center, kept, differences)
        row, fresh, half = memory_at(rows, spare, halves)
        payload, sizes = array_at(out, room, np.uint8), array_at(lengths, parts, np.uint32)
        return pack(zstd, array_at(words, count, word), plan, row, fresh, half, payload, end, sizes)

    return entry


def _of_bytes() -> Callable[..., Any]:
    plane = _plane()

    def pack(
        zstd: int, words: Words, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words,
        out: Plane, end: int, lengths: Words,
    ) -> Any:  # fmt: skip
        return plane(zstd, words, plan, 0, rows, spare, out, end, lengths, 0)

    return pack


def _of_twos() -> Callable[..., Any]:
    pair = _pair()

    def pack(
        zstd: int, words: Words, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words,
        out: Plane, end: int, lengths: Words,
    ) -> Any:  # fmt: skip
        return pair(zstd, words, plan, 0, plan.split, rows, spare, out, end, lengths, 0)

    return pack


def _of_fours() -> Callable[..., Any]:
    pair, halve = _pair(), halver(4)

    def pack(
        zstd: int, words: Words, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words,
        out: Plane, end: int, lengths: Words,
    ) -> Any:  # fmt: skip
        high, low = halves[0][: words.size], halves[1][: words.size]
        halve(words, _CARRY_OF_FOUR if plan.differences else 0, high, low)
        end = pair(zstd, high, plan, 0, plan.split, rows, spare, out, end, lengths, 0)
        size = 2 * words.size
        if not plan.kept:
            part = plan.ways[0][3] + plan.ways[1][3]
            return pair(zstd, low, plan, 2, WHOLE_BYTES, rows, spare, out, end, lengths, part)
        if end == _FULL or end + size > out.size:
            return _FULL
        behind = out[end : end + size].view(np.uint16)
        for place in range(words.size):
            behind[place] = low[place]
        lengths[lengths.size - 1] = size
        return end + size

    return pack


@cache
def _pair() -> Helper:
    """Cuts words of two bytes into the planes from `first` on, and codes these."""
    plane, halve = _plane(), halver(2)
    narrow, wide = (cutter(split) for split in SPLITS[:2])

    def pair(
        zstd: int, words: Words, plan: CompiledPlan, first: int, split: int, rows: Plane, spare: Plane,
        out: Plane, end: int, lengths: Words, part: int,
    ) -> Any:  # fmt: skip
        upper, lower = rows[first][: words.size], rows[first + 1][: words.size]
        if split == SPLITS[0]:
            narrow(words, plan.center, upper, lower)
        elif split == SPLITS[1]:
            wide(words, plan.center, upper, lower)
        else:
            halve(words, _CARRY_OF_TWO if plan.differences else 0, upper, lower)
        end = plane(zstd, upper, plan, first, rows, spare, out, end, lengths, part)
        return plane(zstd, lower, plan, first + 1, rows, spare, out, end, lengths, part + plan.ways[first][3])

    return helping(pair, INT(ADDRESS, read(2), PLAN, INT, INT, *MEMORY[:2], *_OUT))


@cache
def _plane() -> Helper:
    """Puts the parts of a plane behind each other."""
    code, copy, squeezed = _code(), _copy(), _squeezed()

    def plane(
        zstd: int, cut: Plane, plan: CompiledPlan, place: int, rows: Plane, spare: Plane,
        out: Plane, end: int, lengths: Words, part: int,
    ) -> Any:  # fmt: skip
        bits, offset, coded = plan.ways[place][0], plan.ways[place][1], plan.ways[place][2]
        if bits != WHOLE:
            return squeezed(zstd, cut, bits, offset, rows, spare, out, end, lengths, part)
        if not coded:
            return copy(cut, out, end, lengths, part)
        return code(zstd, cut, spare, out, end, lengths, part)

    return helping(plane, INT(ADDRESS, read(1), PLAN, INT, *MEMORY[:2], *_OUT))


@cache
def _squeezed() -> Helper:
    code, squeeze = _code(), squeezer_to_rows()

    def squeezed(
        zstd: int, cut: Plane, bits: int, offset: int, rows: Plane, spare: Plane,
        out: Plane, end: int, lengths: Words, part: int,
    ) -> Any:  # fmt: skip
        found = squeeze(cut, bits, offset, rows)
        common, gaps, others = rows[COMMON], rows[GAPS], rows[OTHERS]
        end = code(zstd, common[: (cut.size * bits + WHOLE - 1) // WHOLE], spare, out, end, lengths, part)
        lengths[part + 1] = 0
        if found and end != _FULL and end + _LENGTH <= out.size:
            for byte in range(_LENGTH):
                out[end + byte] = found >> WHOLE * byte & 0xFF
            end = code(zstd, gaps[:found], spare, out, end + _LENGTH, lengths, part + 1)
            lengths[part + 1] += _LENGTH
        elif found:
            end = _FULL
        return code(zstd, others[:found], spare, out, end, lengths, part + 2)

    return helping(squeezed, INT(ADDRESS, read(1), INT, INT, *MEMORY[:2], *_OUT))


@cache
def _code() -> Helper:
    smallest, copy = coding(), _copy()

    def code(zstd: int, part: Plane, fresh: Plane, out: Plane, end: int, lengths: Words, number: int) -> Any:
        size = smallest(zstd, part, fresh)
        if size < 0:
            return _FULL
        if size <= 1 or size == part.size:
            return copy(part[:size], out, end, lengths, number)
        return copy(fresh[:size], out, end, lengths, number)

    return helping(code, INT(ADDRESS, read(1), given(1), *_OUT))


@cache
def _copy() -> Helper:
    def copy(part: Plane, out: Plane, end: int, lengths: Words, number: int) -> Any:
        if end == _FULL or end + part.size > out.size:
            return _FULL
        behind = out[end:]
        for place in range(part.size):
            behind[place] = part[place]
        lengths[number] = part.size
        return end + part.size

    return helping(copy, INT(read(1), *_OUT))
