"""A payload of planes to words by one compiled call, each block while it is in a core's cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types

from ckptstore.format.codecs.compiled.plans import COMMON, GAPS, OTHERS, SPLITS, CompiledPlan
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, kind, read
from ckptstore.format.codecs.compiled.source.frames import decoding
from ckptstore.format.codecs.compiled.source.plans import (
    ADDRESS,
    BOOL,
    INT,
    MEMORY,
    NUMBERS,
    PLAN,
    memory_at,
    plan_at,
)
from ckptstore.format.codecs.layout import WHOLE_BYTES
from ckptstore.format.codecs.parts import ALIKE, STORED, Numbers, tabulate
from ckptstore.format.codecs.squeezing import STEPS, WHOLE, per_byte
from ckptstore.format.codecs.words import BLOCK_WORDS, Plane, Words, word_type

_BYTE, _WORD = np.uint8, np.uint16
_DAMAGED = -1
_TABLE = types.Array(INT, 3, "C", aligned=False)
_SOURCE = read(1), NUMBERS, NUMBERS, INT


def unpacking(width: int) -> Helper:
    """What joins words of a width, or adds to them: whether nothing was damaged."""
    make, word = {1: _of_bytes, 2: _of_twos, 4: _of_fours}[width], word_type(width).type
    unpack = _unpacking(make(), width)

    def entry(
        zstd: Any, stored: Any, size: int, borders: Any, bounds: int, shapes: Any, parts: int, count: int,
        table: Any, blocks: int, ways: Any, planes: int, split: int, center: int, kept: int, differences: int,
        rows: Any, spare: Any, halves: Any, words: Any, filled: int,
    ) -> Any:  # fmt: skip
        payload, starts = array_at(stored, size, np.uint8), array_at(borders, bounds, np.int64)
        each, found = array_at(shapes, parts, np.int64), array_at(table, (blocks, parts, 4), np.int64)
        plan = plan_at(ways, planes, split, center, kept, differences)
        row, fresh, half = memory_at(rows, spare, halves)
        out = array_at(words, filled, word)
        return unpack(zstd, payload, starts, each, count, found, plan, row, fresh, half, out)

    return entry


def _unpacking(joining: Helper, width: int) -> Helper:
    tabulating = _tabulating()

    def unpack(
        zstd: int, stored: Plane, borders: Numbers, shapes: Numbers, count: int, table: Numbers, plan: CompiledPlan,
        rows: Plane, spare: Plane, halves: Words, words: Words,
    ) -> bool:  # fmt: skip
        if not tabulating(stored, borders, shapes, count, table):
            return False
        for block in range(table.shape[0]):
            out = words[block * BLOCK_WORDS : (block + 1) * BLOCK_WORDS]
            if not joining(zstd, stored, table[block], plan, rows, spare, halves, out):
                return False
        return True

    return helping(unpack, BOOL(ADDRESS, *_SOURCE, _TABLE, PLAN, *MEMORY, given(width)))


@cache
def _tabulating() -> Helper:
    return helping(tabulate, BOOL(*_SOURCE, _TABLE))


def _joining(join: Callable[..., bool], width: int) -> Helper:
    return helping(join, BOOL(*_block(), *MEMORY, given(width)))


def _of_bytes() -> Helper:
    plane = _plane()

    def join(
        zstd: int, stored: Plane, row: Numbers, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words, out: Words
    ) -> bool:
        found = plane(zstd, stored, row, plan, rows, 0, 0, out.size)
        if found.size != out.size:
            return False
        for place in range(out.size):
            out[place] = _BYTE(out[place] + found[place]) if plan.differences else found[place]
        return True

    return _joining(join, 1)


def _of_twos() -> Helper:
    pair = _pair()

    def join(
        zstd: int, stored: Plane, row: Numbers, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words, out: Words
    ) -> bool:
        joined = halves[0][: out.size] if plan.differences else out
        if pair(zstd, stored, row, plan, rows, 0, 0, plan.split, joined) == _DAMAGED:
            return False
        if plan.differences:
            for place in range(out.size):
                out[place] = _WORD(out[place] + joined[place])
        return True

    return _joining(join, 2)


def _of_fours() -> Helper:
    pair, part, plain, add = _pair(), _part(), _join(4, signed=False), _join(4, signed=True, onto=True)

    def join(
        zstd: int, stored: Plane, row: Numbers, plan: CompiledPlan, rows: Plane, spare: Plane, halves: Words, out: Words
    ) -> bool:
        first = 0
        for half in range(1 if plan.kept else 2):
            split = WHOLE_BYTES if half else plan.split
            first = pair(zstd, stored, row, plan, rows, 2 * half, first, split, halves[half][: out.size])
            if first == _DAMAGED:
                return False
        high, low = halves[0][: out.size], halves[1][: out.size]
        lower = part(zstd, stored, spare, row[first]).view(np.uint16) if plan.kept else low
        if plan.differences:
            add(high, lower, out)
        else:
            plain(high, lower, out)
        return True

    return _joining(join, 4)


@cache
def _pair() -> Helper:
    """Fills words of two bytes from the planes from `place` on; gives which part is next."""
    plane, plain, signed = _plane(), _join(2, signed=False), _join(2, signed=True)
    narrow, wide = (_fit(split) for split in SPLITS[:2])

    def pair(
        zstd: int, stored: Plane, row: Numbers, plan: CompiledPlan, rows: Plane,
        place: int, first: int, split: int, out: Words,
    ) -> int:  # fmt: skip
        high = low = stored[:0]
        for number in range(2):
            high, low = low, plane(zstd, stored, row, plan, rows, place + number, first, out.size)
            first += plan.ways[place + number][3]
            if low.size != out.size:
                return _DAMAGED
        if split == SPLITS[0]:
            narrow(high, low, _WORD(plan.center), out)
        elif split == SPLITS[1]:
            wide(high, low, _WORD(plan.center), out)
        elif plan.differences:
            signed(high, low, out)
        else:
            plain(high, low, out)
        return first

    return helping(pair, INT(*_block(), MEMORY[0], INT, INT, INT, given(2)))


@cache
def _plane() -> Helper:
    """A plane of `count` bytes, and none when it is damaged."""
    part, twos, fours = _part(), _spread(2), _spread(4)

    def plane(
        zstd: int, stored: Plane, row: Numbers, plan: CompiledPlan, rows: Plane, place: int, first: int, count: int
    ) -> Any:
        bits, offset, out = plan.ways[place][0], _BYTE(plan.ways[place][1]), rows[place]
        if bits == WHOLE:
            return part(zstd, stored, out, row[first])
        common = part(zstd, stored, rows[COMMON], row[first])
        gaps = part(zstd, stored, rows[GAPS], row[first + 1])
        others = part(zstd, stored, rows[OTHERS], row[first + 2])
        if common.size != row[first][3] or gaps.size != row[first + 1][3] or others.size != gaps.size:
            return out[:0]
        if bits == 4:
            fours(common, offset, out)
        elif bits == 2:
            twos(common, offset, out)
        else:
            out[:count] = offset
        last = 0
        for number in range(gaps.size):
            last += STEPS[gaps[number]]
            if last >= count:
                return out[:0]
            out[last] = others[number]
        return out[:count]

    return helping(plane, read(1)(*_block(), MEMORY[0], INT, INT, INT))


@cache
def _part() -> Helper:
    """A part, and nothing when it is damaged."""
    decode = decoding()

    def part(zstd: int, stored: Plane, fresh: Plane, where: Numbers) -> Any:
        coding, start, length, size = where[0], where[1], where[2], where[3]
        if coding == STORED:
            return stored[start : start + size]
        if coding == ALIKE:
            fresh[:size] = stored[start]
        elif not decode(zstd, stored, start, length, fresh[:size]):
            return fresh[:0]
        return fresh[:size]

    return helping(part, read(1)(ADDRESS, read(1), given(1), NUMBERS))


@cache
def _spread(bits: int) -> Helper:
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)

    def spread(common: Plane, offset: int, out: Plane) -> None:
        for place in range(places):
            part = out[place * common.size : (place + 1) * common.size]
            for at in range(common.size):
                part[at] = _BYTE(_BYTE(common[at] >> _BYTE(bits * place)) & mask) + offset

    return helping(spread, types.void(read(1), kind(1), given(1)))


@cache
def _join(width: int, *, signed: bool, onto: bool = False) -> Helper:
    word, shift = word_type(width).type, 4 * width
    half = np.dtype(f"{'i' if signed else 'u'}{width // 2}").type

    def join(high: Words, low: Words, words: Words) -> None:
        for place in range(words.size):
            joined = word(word(word(high[place]) << shift) + word(half(low[place])))
            words[place] = joined + words[place] if onto else joined

    return helping(join, types.void(read(width // 2), read(width // 2), given(width)))


@cache
def _fit(split: int) -> Helper:
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def fit(byte: Plane, others: Plane, center: int, words: Words) -> None:
        for place in range(words.size):
            rest = _WORD(others[place])
            upper = _WORD(_WORD(byte[place]) << split) | _WORD((rest & before) << 8)
            words[place] = _WORD(upper | (rest & behind)) + center

    return helping(fit, types.void(read(1), read(1), kind(2), given(2)))


def _block() -> tuple[types.Type, ...]:
    """What decodes, a payload, where the parts of one of its blocks are, and its plan."""
    return ADDRESS, read(1), types.Array(INT, 2, "C", aligned=False), PLAN
