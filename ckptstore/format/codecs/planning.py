"""How a sample of words is best cut and coded."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ckptstore.format.codecs.cutting import Cutter
from ckptstore.format.codecs.layout import Cut, Plan, Way
from ckptstore.format.codecs.squeezing import NARROW, Counts, best_offset, symbols_of
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words

_VARYING = 3  # a byte of the lower half of an exponent, and the upper half of a mantissa
_COMMON = 0.6
"""The share of bytes that must be neighbours; of others it would take much to tell where they are."""
_LENGTHS = 0.75  # what a sample takes of the lengths of a block's parts
_DESCRIPTION = 0.5
"""What zstd spends to describe its code, in bytes a symbol: in a small sample it weighs as it will not in the whole."""
CODED, _GAP = 2.7, 3.3
"""What a coded byte, and one that is put in its place, take to decode with numba; see `Plan.work`."""


class _Estimate(NamedTuple):
    """What coding a plane of a sample comes to: bytes, and `Plan.work` of as many raw ones."""

    size: float
    work: float = 0.0


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
    whole = len(tools.coder.encode(plane))
    if whole == len(plane):
        return Way(coded=False), _Estimate(whole)
    if whole == 1:
        return Way(coded=True), _Estimate(whole)
    counts = tools.loops.count(plane)
    found = {Way(coded=True): _Estimate(whole - _described(counts), CODED * len(plane))}
    for bits in NARROW:
        offset, share = best_offset(counts, bits)
        if share < _COMMON:
            break  # the neighbours that fewer bits tell are fewer
        common = tools.array(1, symbols_of(len(plane), bits), "common")
        gaps, others = tools.loops.squeeze(plane, bits, offset, common)
        parts = [_coded(part, tools) for part in (common, gaps, others)]
        work = _GAP * len(gaps) + sum(part.work for part in parts)
        found[Way(True, bits, offset)] = _Estimate(_LENGTHS + sum(part.size for part in parts), work)
    return min(found.items(), key=lambda each: each[1].size)


def _coded(part: Plane, tools: Tools) -> _Estimate:
    size = len(tools.coder.encode(part))
    if size in {1, len(part)}:
        return _Estimate(size)
    return _Estimate(size - _described(tools.loops.count(part)), CODED * len(part))


def _described(counts: Counts) -> float:
    return _DESCRIPTION * int(np.count_nonzero(counts))
