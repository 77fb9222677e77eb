"""How a sample of words is best cut and coded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.entropy import Coders
from ckptstore.format.codecs.layout import Cut, Plan, Way
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.squeezing import NARROW, WHOLE, Weight
from ckptstore.format.codecs.tools import borrowed
from ckptstore.format.codecs.words import Plane, Words

_VARYING = 3  # a byte of the lower half of an exponent, and the upper half of a mantissa
_LENGTHS = 0.75  # what a sample takes of the lengths of a block's parts
_DESCRIPTION = 0.5
"""What zstd spends to describe its code, in bytes a symbol: in a small sample it weighs as it will not in the whole."""
_GAINED, _NOTHING = 0.99, 0.02
"""To what of its size a sample must shrink for a search to pay; and what is left of one that is nearly all alike."""


class _Estimate(NamedTuple):
    """What coding a plane of a sample comes to, in bytes: all, those to decode, and those to put in their places."""

    size: float
    coded: float
    gaps: float


_Found = tuple[Way, _Estimate]


def planned(sample: Words, cut: Cut, *, onto: bool = False) -> Plan:
    """The plan that is best for a sample of words which are cut like this, and may be added to others."""
    half = cut.width // 2
    with borrowed() as tools:
        planes = Cutter(cut, tools).cut(sample)
        found, searched = _best_ways(planes, tools.loops, tools.coders)
        cost = tools.loops.cost(cut)
    ways = tuple(way for way, _ in found)
    share, coded, gaps = (sum(each) / max(sample.nbytes, 1) for each in zip(*(each for _, each in found), strict=True))
    work = (cost.onto if onto else cost.joined) + cost.coded * coded + cost.placed * gaps
    if half > 1 and not any(way.coded for way in ways[half:]):
        return Plan(replace(cut, kept=True), ways[: half + 1], share, work, searched)
    return Plan(cut, ways, share, work, searched)


def centered(sample: Words, fields: Plan) -> Plan:
    """The plan that also codes what is uneven in mantissas, for a sample whose plan by `fields` is known."""
    center = fields.ways[0].offset if fields.ways[0].bits == NARROW[0] else 0
    return planned(sample, Cut(sample.itemsize, _VARYING, center))


def _best_ways(planes: Sequence[Plane], loops: Loops, coders: Coders) -> tuple[list[_Found], bool]:
    """Of all planes, and whether these are searched for what repeats itself: as far as that gains something."""
    usual = [loops.weigh(plane, coders.usual) for plane in planes]
    found = [_best_way(len(plane), each) for plane, each in zip(planes, usual, strict=True)]
    if coders.searching is coders.usual:
        return found, False
    raw, whole = sum(plane.nbytes for plane in planes), sum(weights[0].size for weights in usual)
    if sum(len(coders.searching.encode(plane)) for plane in planes) >= max(_GAINED * whole, _NOTHING * raw):
        return found, False
    other = [_best_way(len(plane), loops.weigh(plane, coders.searching)) for plane in planes]
    size, least = (sum(each.size for _, each in ways) for ways in (found, other))
    return (other, True) if least < max(_GAINED * size, _NOTHING * raw) else (found, False)


def _best_way(size: int, weights: Iterable[Weight]) -> _Found:
    """Of a plane of a size, and what it comes to."""
    best, estimate = min(((weight, _estimated(weight)) for weight in weights), key=lambda each: each[1].size)
    return Way(best.bits != WHOLE or best.size != size, best.bits, best.offset), estimate


def _estimated(weight: Weight) -> _Estimate:
    lengths = 0 if weight.bits == WHOLE else _LENGTHS
    size = lengths + weight.size - _DESCRIPTION * weight.symbols
    return _Estimate(size, weight.coded, weight.gaps)
