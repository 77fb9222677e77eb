"""How a sample of words is best cut and coded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ckptstore.format.codecs.cutting import Cut, Cutter
from ckptstore.format.codecs.halving import best_offset
from ckptstore.format.codecs.planar import HALVED, THINNED, WHOLE, Plan, Way, cut_again
from ckptstore.format.codecs.tools import Tools, borrowed
from ckptstore.format.codecs.words import Plane, Words

_VARYING = 5  # the sign, and the upper half of an exponent
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


def centered(sample: Words, rotated: Plan) -> Plan:
    """The plan that also codes what is uneven in mantissas, for a sample whose `rotated` plan is known."""
    center = rotated.ways[0].offset if rotated.ways[0].kind == HALVED else 0
    return planned(sample, Cut(sample.itemsize, _VARYING, center))


def _best_way(plane: Plane, tools: Tools) -> tuple[Way, float]:
    """And the size to expect."""
    whole = _size(plane, tools)
    if whole >= len(plane):
        return Way(coded=False), len(plane)
    counts = np.bincount(plane, minlength=256)
    kinds = {WHOLE: 0, HALVED: best_offset(counts), THINNED: int(counts.argmax())}
    if counts.max() < len(plane) / 2:
        del kinds[THINNED]
    sizes = {
        kind: sum(_size(part, tools) for part in cut_again(plane, kind, offset, tools))
        for kind, offset in kinds.items()
    }
    best = min(sizes, key=lambda kind: sizes[kind])
    return Way(coded=True, kind=best, offset=kinds[best]), sizes[best]


def _size(part: Plane, tools: Tools) -> float:
    size = len(tools.coder.encode(part))
    return size if size in {1, len(part)} else size - _DESCRIPTION * int(np.count_nonzero(np.bincount(part)))
