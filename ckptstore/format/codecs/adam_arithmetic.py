"""Adam's own arithmetic: what a weight or a second moment must be after a step, given what it was and the moments.

The same bits come out on every machine and under every version of numpy: each operation is one of IEEE 754's, rounds
once, and is no power or logarithm. Some threads take denormal numbers for zero. That reaches no result: second moments
that small are made zero, where a result is small, or no number, the prediction is the old word itself, and nothing is
written with steps so large that a denormal first moment counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ckptstore.format.codecs.words import Words

Floats = NDArray[np.float32]

SMALL = 2.0**-50
"""Below this weights are small, and second moments below its square."""
_FACTORS = (2.0**-50, 2.0**50)
_BETAS = (2.0**-26, 1 - 2.0**-26)
_MOST_GROWTH = 2.0**48
"""What first moments may at most be multiplied with, so that denormal ones reach no weight that is predicted."""


class Kind(IntEnum):
    """What is predicted, from which bases, and with which coefficients."""

    WEIGHT = 0
    """From the old weight, the new first and the new second moment; what decay leaves of the weight, minus the size of
    the step, the root of the second bias correction, eps."""
    SECOND = 1
    """The second moment, from the old one, the old and the new first moment; both betas."""


class Rounding(IntEnum):
    """Where numbers of two bytes are rounded; those of four are always rounded by each operation."""

    EACH = 0
    """By each operation, as where torch loops over tensors, or over lists of them."""
    LAST = 1
    """When they are stored, as in torch's fused kernels."""


class Number(IntEnum):
    """What the words are."""

    FLOAT32 = 0
    BFLOAT16 = 1

    @property
    def width(self) -> int:
        """Bytes."""
        return 4 if self is Number.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class Prediction:
    """What Adam computed: a formula and its coefficients."""

    kind: Kind
    number: Number
    rounding: Rounding
    coefficients: tuple[float, ...]

    @property
    def usable(self) -> bool:
        """Whether its coefficients keep all that counts away from the denormal numbers."""
        low, high = _FACTORS if self.kind is Kind.WEIGHT else _BETAS
        return all(low <= abs(value) <= high for value in self.coefficients)

    @property
    def lasting(self) -> bool:
        """Whether denormal first moments reach no result; otherwise nothing is to be written with it."""
        if self.kind is Kind.SECOND:
            return True
        _, size, _, eps = self.coefficients
        return abs(size) <= _MOST_GROWTH * eps

    @property
    def factors(self) -> list[np.float32]:
        """What the numbers are multiplied with, or divided by, or what is added to them."""
        factors = self.coefficients
        if self.kind is Kind.SECOND:
            beta1, beta2 = self.coefficients
            factors = beta2, 1 - beta1, 1 - beta2
        with np.errstate(over="ignore"):
            return [np.float32(value) for value in factors]

    @property
    def least(self) -> np.float32:
        """Below this, the old word itself is predicted."""
        return np.float32(SMALL if self.kind is Kind.WEIGHT else SMALL**2)

    def words(self, bases: Sequence[Words]) -> Words:
        """The predicted words, which may be altered."""
        narrow = _NARROW[self.number]
        between = narrow if self.rounding is Rounding.EACH else _same
        formula = _weight if self.kind is Kind.WEIGHT else _second
        with np.errstate(all="ignore"):
            found = narrow(formula(self.factors, [_wide(base) for base in bases], between))
            sure = np.abs(found) >= self.least
        words = found.view(np.uint32)
        if self.number is Number.BFLOAT16:
            words = (words >> np.uint32(16)).astype(np.uint16)
        return words if sure.all() else np.where(sure, words, bases[0])


def _weight(factors: Sequence[np.float32], bases: Sequence[Floats], narrow: Callable[[Floats], Floats]) -> Floats:
    kept, size, root, eps = factors
    old, first, second = bases
    second = second * (second >= np.float32(SMALL**2))
    divisor = narrow(narrow(narrow(np.sqrt(second)) / root) + eps)
    return narrow(old * kept) + size * first / divisor


def _second(factors: Sequence[np.float32], bases: Sequence[Floats], narrow: Callable[[Floats], Floats]) -> Floats:
    kept, share, added = factors
    old, before, after = bases
    gradient = (after - before) / share + before
    return narrow(old * kept) + added * gradient * gradient


def _wide(words: Words) -> Floats:
    if words.itemsize == np.dtype(np.float32).itemsize:
        return words.view(np.float32)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _same(values: Floats) -> Floats:
    return values


def _to_bfloat16(values: Floats) -> Floats:
    """Rounded to the nearest number of bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


_NARROW = {Number.FLOAT32: _same, Number.BFLOAT16: _to_bfloat16}
