"""How a sample of words is best cut and coded."""

from __future__ import annotations

from dataclasses import replace

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


def planned(sample: Words, cut: Cut) -> Plan:
    """The plan that is best for a sample of words which are cut like this."""
    half = cut.width // 2
    with borrowed() as tools:
        found = [_best_way(plane, tools) for plane in Cutter(cut, tools).cut(sample)]
    ways, share = tuple(way for way, _ in found), sum(size for _, size in found) / max(sample.nbytes, 1)
    if half > 1 and not any(way.coded for way in ways[half:]):
        return Plan(replace(cut, kept=True), ways[: half + 1], share)
    return Plan(cut, ways, share)


def centered(sample: Words, fields: Plan) -> Plan:
    """The plan that also codes what is uneven in mantissas, for a sample whose plan by `fields` is known."""
    center = fields.ways[0].offset if fields.ways[0].bits == NARROW[0] else 0
    return planned(sample, Cut(sample.itemsize, _VARYING, center))


def _best_way(plane: Plane, tools: Tools) -> tuple[Way, float]:
    """And the size to expect."""
    whole = len(tools.coder.encode(plane))
    if whole == len(plane):
        return Way(coded=False), whole
    if whole == 1:
        return Way(coded=True), whole
    counts = tools.loops.count(plane)
    sizes = {Way(coded=True): whole - _described(counts)}
    for bits in NARROW:
        offset, share = best_offset(counts, bits)
        if share < _COMMON:
            break  # the neighbours that fewer bits tell are fewer
        common = tools.array(1, symbols_of(len(plane), bits), "common")
        parts = (common, *tools.loops.squeeze(plane, bits, offset, common))
        sizes[Way(True, bits, offset)] = _LENGTHS + sum(_size(part, tools) for part in parts)
    best = min(sizes, key=lambda way: sizes[way])
    return best, sizes[best]


def _size(part: Plane, tools: Tools) -> float:
    size = len(tools.coder.encode(part))
    return size if size in {1, len(part)} else size - _described(tools.loops.count(part))


def _described(counts: Counts) -> float:
    return _DESCRIPTION * int(np.count_nonzero(counts))
