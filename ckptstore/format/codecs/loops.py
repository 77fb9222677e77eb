"""The innermost loops over blocks of words and planes, in numpy; `compiled` has the same ones, several times as fast.

Here cutting goes by halves: casts and shifts of whole arrays are several times as fast as copies with a stride, and
numpy casts within an operation more slowly than before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.adam_arithmetic import Prediction
from ckptstore.format.codecs.entropy import Coders, PlaneCoder
from ckptstore.format.codecs.layout import Cut, Plan
from ckptstore.format.codecs.making import Get, at_once
from ckptstore.format.codecs.parts import Source
from ckptstore.format.codecs.squeezing import (
    FAR,
    HOPS,
    LEAST_COMMON,
    NARROW,
    POWERS,
    STEPS,
    WHOLE,
    Weight,
    best_offset,
    counts_of,
    per_byte,
    symbols_of,
)
from ckptstore.format.codecs.words import Plane, Words, signed

Places = npt.NDArray[np.intp]
Array = Callable[[int, int, str], Words]
"""Memory that is used again for so many words of a width and for a use."""

_SIGN_ALONE = WHOLE - 1


class Cost(NamedTuple):
    """What decoding a byte takes, on the scale of `READ`, with verifying it.

    One that is joined with others, or added to its base, and beside that one that was coded, and one that is put in
    its place.
    """

    joined: float
    onto: float
    coded: float
    placed: float


_COST = Cost(1.0, 1.2, 2.7, 9.8)


class Loops:
    """For one thread at a time; `get` is how loops are got that take long to compile."""

    def __init__(self, array: Array, coders: Coders, get: Get = at_once) -> None:
        self.array, self.coders, self.get = array, coders, get

    def cost(self, cut: Cut) -> Cost:
        """Of words that are cut like this."""
        return _COST

    def halve(self, words: Words, high: Words, low: Words, *, balanced: bool) -> None:
        """Upper and lower halves of words; `balanced`: lower ones are signed, and the upper ones carry for them."""
        width, count = words.itemsize, len(words)
        spare = self.array(width, count, "spare")
        np.copyto(low, words, casting="unsafe")
        if balanced:
            words = np.add(words, 1 << 4 * width - 1, out=spare)
        np.right_shift(words, 4 * width, out=spare)
        np.copyto(high, spare, casting="unsafe")

    def pack(self, plan: Plan, words: Words, out: Plane, end: int, lengths: Words) -> int:
        """Put the parts of a block behind what ends there, and store their lengths.

        Where they end; 0 where no loop does so, or not yet, or there is no room.
        """
        return 0

    def unpack(self, plan: Plan, source: Source, words: Words, *, onto: bool) -> bool | None:
        """Fill words, or add to them, from a payload; None where no loop does so, or not yet.

        False where something is damaged: some words may be filled then, or added to.
        """
        return None

    def join(self, high: Words, low: Words, words: Words, *, balanced: bool, onto: bool = False) -> None:
        """The inverse of `halve`, or that added to `words`."""
        width, count = words.itemsize, len(words)
        spare, joined = self.array(width, count, "spare"), self.array(width, count, "joined") if onto else words
        np.copyto(joined, high)
        np.left_shift(joined, 4 * width, out=joined)
        if balanced:
            np.copyto(signed(spare), signed(low))
        else:
            np.copyto(spare, low)
        np.add(joined, spare, out=joined)
        if onto:
            np.add(words, joined, out=words)

    def cut_fields(self, words: Words, split: int, center: int, byte: Plane, others: Plane) -> None:
        """Of words of 16 bits less `center` the eight bits from `split` on, and the others."""
        spare, upper, rest = self.array(2, len(words), "spare"), self.array(1, len(words), "spare"), (1 << split) - 1
        if center:
            words = np.subtract(words, center, out=self.array(2, len(words), "centered"))
        np.right_shift(words, split, out=spare)
        np.copyto(byte, spare, casting="unsafe")
        np.right_shift(words, 8, out=spare)
        np.copyto(upper, spare, casting="unsafe")
        np.bitwise_and(upper, 0xFF - rest, out=upper)
        np.copyto(others, words, casting="unsafe")
        np.bitwise_and(others, rest, out=others)
        np.bitwise_or(others, upper, out=others)

    def join_fields(self, byte: Plane, others: Plane, split: int, center: int, words: Words) -> None:
        """The inverse of `cut_fields`."""
        spare, rest = self.array(2, len(words), "spare"), (1 << split) - 1
        np.copyto(words, byte)
        np.multiply(words, 1 << split, out=words)
        if split == _SIGN_ALONE:  # it is extended faster than copied
            np.copyto(signed(spare), signed(others))
        else:
            np.copyto(spare, others)
            np.multiply(spare, 0x101, out=spare)
        np.bitwise_and(spare, (0xFF - rest) << 8 | rest, out=spare)
        np.bitwise_or(words, spare, out=words)
        if center:
            np.add(words, center, out=words)

    def weigh(self, plane: Plane, coder: PlaneCoder) -> list[Weight]:
        """What a plane of at most a block comes to: as it is, and squeezed unless that is not coded, or one byte."""
        found = [_weight(WHOLE, 0, [plane], coder)]
        if not found[0].coded:
            return found
        counts = counts_of(plane)
        for bits in NARROW:
            offset, share = best_offset(counts, bits)
            if share < LEAST_COMMON:
                break  # fewer bits have fewer neighbours
            common = self.array(1, symbols_of(len(plane), bits), "common")
            found.append(_weight(bits, offset, [common, *self.squeeze(plane, bits, offset, common)], coder))
        return found

    def squeeze(self, plane: Plane, bits: int, offset: int, common: Plane) -> tuple[Plane, Plane]:
        """Fill `common`; gaps and others. See `squeezing`."""
        count, symbols, mask = len(plane), len(common), (1 << bits) - 1
        moved = self.array(1, max(count, symbols * per_byte(bits)), "moved")
        np.subtract(plane, np.uint8(offset), out=moved[:count])
        moved[count:] = 0
        far = self.array(1, count, "spare").view(np.bool_)
        where, gaps = _gaps(np.flatnonzero(np.greater_equal(moved[:count], 1 << bits, out=far)))
        spare = self.array(1, symbols, "spare")
        for place in range(per_byte(bits)):
            np.bitwise_and(moved[place * symbols : (place + 1) * symbols], mask, out=spare if place else common)
            if place:
                np.multiply(spare, 1 << bits * place, out=spare)  # a shift to the left is slower on bytes
                np.bitwise_or(common, spare, out=common)
        return gaps, plane[where]

    def predict(self, prediction: Prediction, bases: Sequence[Words], words: Words) -> None:
        """Fill words with what Adam made of the bases."""
        words[:] = prediction.words(bases)

    def spread(
        self, common: Plane, bits: int, offset: int, gaps: Plane, others: Plane, padded: Plane, count: int
    ) -> None:
        """The inverse of `squeeze`, to the first `count` bytes of a plane that has room for all that is in `common`.

        Raises CorruptData when gaps lead out of them.
        """
        symbols, mask = len(common), (1 << bits) - 1
        for place in range(per_byte(bits)):
            part = padded[place * symbols : (place + 1) * symbols]
            rest = np.right_shift(common, bits * place, out=part) if place else common
            if bits * (place + 1) < WHOLE:  # nothing lies before the last ones
                np.bitwise_and(rest, mask, out=part)
        if bits:
            np.add(padded, np.uint8(offset), out=padded)
        else:
            padded.fill(offset)
        where = np.cumsum(STEPS[gaps] if gaps.max(initial=0) >= FAR else gaps, dtype=np.intp)
        if len(where) and where[-1] >= count:
            raise CorruptData(f"a squeezed plane of {count} bytes tells of others behind its end")
        padded[where] = others


def _weight(bits: int, offset: int, parts: Sequence[Plane], coder: PlaneCoder) -> Weight:
    sizes = [len(coder.encode(part)) for part in parts]
    coded = [part for part, size in zip(parts, sizes, strict=True) if size not in {1, len(part)}]
    symbols = sum(int(np.count_nonzero(counts_of(part))) for part in coded)
    gaps = len(parts[1]) if bits != WHOLE else 0
    return Weight(bits, offset, sum(sizes), symbols, sum(map(len, coded)), gaps)


def _gaps(where: Places) -> tuple[Places, Plane]:
    """The places, with those between that lead to far ones, and the gaps."""
    gaps = _differences(where)
    far = gaps >= FAR
    if not far.any():
        return where, gaps.astype(np.uint8)
    before, hops = (where[far] - gaps[far])[:, np.newaxis], (gaps[far] // FAR)[:, np.newaxis]
    between = (before + FAR * (hops >> POWERS << POWERS))[hops >> POWERS & 1 > 0]
    where = np.sort(np.concatenate([where, between]))
    gaps = _differences(where)
    far = gaps >= FAR
    gaps[far] = FAR + np.searchsorted(HOPS, gaps[far])
    return where, gaps.astype(np.uint8)


def _differences(where: Places) -> Places:
    found = where.copy()
    np.subtract(where[1:], where[:-1], out=found[1:])
    return found
