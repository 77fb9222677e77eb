"""How a sample of words is best cut and coded."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.layout import Cut, Plan, Way
from ckptstore.format.codecs.squeezing import NARROW, WHOLE, Weight
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words

_VARYING = 3  # a byte of the lower half of an exponent, and the upper half of a mantissa
_LENGTHS = 0.75  # what a sample takes of the lengths of a block's parts
_DESCRIPTION = 0.5
"""What zstd spends to describe its code, in bytes a symbol: in a small sample it weighs as it will not in the whole."""
CODED, _GAP = 2.7, 3.3
"""What a coded byte, and one that is put in its place, take to decode with numba; see `Plan.work`."""


class _Estimate(NamedTuple):
    """What coding a plane of a sample comes to: bytes, and `Plan.work` of as many raw ones."""

    size: float
    work: float


def planned(sample: Words, cut: Cut) -> Plan:
    """The plan that is best for a sample of words which are cut like this."""
    half = cut.width // 2
    with borrowed() as tools:
        found = [_best_way(plane, tools) for plane in Cutter(cut, tools).cut(sample)]
    ways, size = tuple(way for way, _ in found), max(sample.nbytes, 1)
    share, work = sum(each.size for _, each in found) / size, sum(each.work for _, each in found) / size
    if half > 1 and not any(way.coded for way in ways[half:]):
        return Plan(replace(cut, kept=True), ways[: half + 1], share, work)
    return Plan(cut, ways, share, work)


def centered(sample: Words, fields: Plan) -> Plan:
    """The plan that also codes what is uneven in mantissas, for a sample whose plan by `fields` is known."""
    center = fields.ways[0].offset if fields.ways[0].bits == NARROW[0] else 0
    return planned(sample, Cut(sample.itemsize, _VARYING, center))


def _best_way(plane: Plane, tools: Tools) -> tuple[Way, _Estimate]:
    """And what it comes to."""
    best, estimate = min(
        ((weight, _estimated(weight)) for weight in tools.loops.weigh(plane)), key=lambda each: each[1].size
    )
    return Way(best.bits != WHOLE or best.size != len(plane), best.bits, best.offset), estimate


def _estimated(weight: Weight) -> _Estimate:
    lengths = 0 if weight.bits == WHOLE else _LENGTHS
    size = lengths + weight.size - _DESCRIPTION * weight.symbols
    return _Estimate(size, CODED * weight.coded + _GAP * weight.gaps)
