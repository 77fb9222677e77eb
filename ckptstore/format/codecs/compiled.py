"""The same loops as in `loops`, compiled by numba for the processor at hand: a few passes at the speed of its cache.

The compiler makes vectors of loops whose every step is cast to the width it has, and whose shifts and masks are
constants; so there is one loop for each. Memory need not be aligned, since payloads are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from ckptstore.format.codecs.loops import Loops, leads_out
from ckptstore.format.codecs.squeezing import FAR, POWERS, STEPS, per_byte
from ckptstore.format.codecs.words import Plane, Words, signed, word_type

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined] # set when it is imported
    raise ImportError("numba is told not to compile")

_Loop = Callable[..., Any]
_FAR, _POWERS = FAR, len(POWERS)
_BYTE, _WORD = np.uint8, np.uint16
_LINE = 128
_LOWS, _TOPS = np.uint64(0x7F7F7F7F7F7F7F7F), np.uint64(0x8080808080808080)


class CompiledLoops(Loops):
    """See `Loops`."""

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """See `Loops.halve`."""
        width = words.itemsize
        _halving(width)(words, 1 << 4 * width - 1 if balanced else 0, high, low)

    def join(self, high: Words, low: Words, words: Words, *, balanced: bool, onto: bool = False) -> None:
        """See `Loops.join`."""
        _joining(words.itemsize, balanced, onto)(high, signed(low) if balanced else low, words)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """See `Loops.cut_fields`."""
        _cutting(split)(words, center, byte, others)

    def join_fields(self, byte: Plane, others: Plane, split: int, center: int, words: Words) -> None:
        """See `Loops.join_fields`."""
        _fitting(split)(byte, others, center, words)

    def squeeze(self, plane: Plane, bits: int, offset: int, common: Plane) -> tuple[Plane, Plane]:
        """See `Loops.squeeze`."""
        gaps, others = self.array(1, len(plane), "gaps"), self.array(1, len(plane), "others")
        eights = np.ndarray(len(plane) // 8, "<u8", plane)
        found = _squeezing(bits)(plane, eights, offset, common, gaps, others)
        return gaps[:found], others[:found]

    def spread(
        self, common: Plane, bits: int, offset: int, gaps: Plane, others: Plane, padded: Plane, count: int
    ) -> None:
        """See `Loops.spread`."""
        if not bits:
            padded.fill(offset)
        if not _spreading(bits)(common, offset, gaps, others, padded, count):
            raise leads_out(count)


@cache
def _halving(width: int) -> _Loop:
    word, half, shift = word_type(width).type, _given(width // 2), 4 * width

    def halve(words: Words, bias: int, high: Words, low: Words) -> None:
        for place in range(words.size):
            low[place] = words[place]
            high[place] = word(words[place] + bias) >> shift

    return _compile(halve, types.void(_read(width), _kind(width), half, half))


@cache
def _joining(width: int, balanced: bool, onto: bool) -> _Loop:  # noqa: FBT001 - private
    word, shift = word_type(width).type, 4 * width
    low_kind = _read(width // 2, signed=balanced)

    def join(high: Words, low: Words, words: Words) -> None:
        for place in range(words.size):
            joined = word(word(word(high[place]) << shift) + word(low[place]))
            words[place] = joined + words[place] if onto else joined

    return _compile(join, types.void(_read(width // 2), low_kind, _given(width)))


@cache
def _cutting(split: int) -> _Loop:
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def cut(words: Words, center: int, byte: Plane, others: Plane) -> None:
        for place in range(words.size):
            word = _WORD(words[place] - center)
            byte[place] = word >> split
            others[place] = (word & behind) | (word >> 8 & before)

    return _compile(cut, types.void(_read(2), _kind(2), _given(1), _given(1)))


@cache
def _fitting(split: int) -> _Loop:
    behind, before = _WORD((1 << split) - 1), _WORD(0x100 - (1 << split))

    def fit(byte: Plane, others: Plane, center: int, words: Words) -> None:
        for place in range(words.size):
            rest = _WORD(others[place])
            upper = _WORD(_WORD(byte[place]) << split) | _WORD((rest & before) << 8)
            words[place] = _WORD(upper | (rest & behind)) + center

    return _compile(fit, types.void(_read(1), _read(1), _kind(2), _given(2)))


@cache
def _squeezing(bits: int) -> _Loop:
    """Others are looked for by lines, and in those that have any by eights: mostly there are none."""
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)
    far, fars = _BYTE(0x100 - (1 << bits)), np.uint64((0x100 - (1 << bits)) * 0x0101010101010101)

    def squeeze(plane: Plane, eights: Words, offset: int, common: Plane, gaps: Plane, others: Plane) -> int:
        for place in range(places):
            part = plane[place * common.size : (place + 1) * common.size]
            for at in range(part.size):
                near = _BYTE(_BYTE(_BYTE(part[at] - offset) & mask) << _BYTE(bits * place))
                common[at] = common[at] | near if place else near
        offsets = np.uint64(offset) * np.uint64(0x0101010101010101)
        told, last = 0, 0
        for line in range(0, plane.size, _LINE):
            found = _BYTE(0)
            part = plane[line : line + _LINE]
            for at in range(part.size):
                found = _BYTE(found | _BYTE(_BYTE(part[at] - offset) & far))
            if not found:
                continue
            for group in range(line // 8, min(line // 8 + _LINE // 8, eights.size + 1)):
                if group < eights.size:
                    eight = eights[group]
                    moved = ((eight | _TOPS) - (offsets & _LOWS)) ^ ((eight ^ ~offsets) & _TOPS)
                    if not moved & fars:
                        continue
                for place in range(8 * group, min(8 * group + 8, plane.size)):
                    if _BYTE(plane[place] - offset) & far:
                        for power in range(_POWERS - 1 if place - last >= _FAR else -1, -1, -1):
                            if place - last >= _FAR << power:
                                last += _FAR << power
                                gaps[told], others[told] = _FAR + power, plane[last]
                                told += 1
                        gaps[told], others[told] = place - last, plane[place]
                        told += 1
                        last = place
        return told

    return _compile(squeeze, types.intp(_read(1), _read(8), _kind(1), _given(1), _given(1), _given(1)))


@cache
def _spreading(bits: int) -> _Loop:
    mask, places = _BYTE((1 << bits) - 1), per_byte(bits)

    def spread(common: Plane, offset: int, gaps: Plane, others: Plane, padded: Plane, count: int) -> bool:
        for place in range(places):
            part = padded[place * common.size : (place + 1) * common.size]
            for at in range(common.size):
                part[at] = _BYTE(_BYTE(common[at] >> _BYTE(bits * place)) & mask) + offset
        last = 0
        for number in range(gaps.size):
            last += STEPS[gaps[number]]
            if last >= count:
                return False
            padded[last] = others[number]
        return True

    return _compile(spread, types.boolean(_read(1), _kind(1), _read(1), _read(1), _given(1), types.intp))


def _compile(loop: _Loop, signature: Any) -> _Loop:
    """Without Python's lock. Not kept on disk: numba's cache mixes up variants that several processes store at once."""
    made: _Loop = numba.njit(signature, nogil=True)(loop)
    return made


def _kind(width: int) -> Any:
    return numba.from_dtype(word_type(width))


def _read(width: int, *, signed: bool = False) -> Any:
    kind = numba.from_dtype(np.dtype(f"<{'i' if signed else 'u'}{width}"))
    return types.Array(kind, 1, "C", readonly=True, aligned=False)


def _given(width: int) -> Any:
    return types.Array(_kind(width), 1, "C", aligned=False)
