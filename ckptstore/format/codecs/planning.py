"""How a sample of words is best cut and coded."""

from __future__ import annotations

from ckptstore.format.codecs.cutting import Cut, Cutter, Plane
from ckptstore.format.codecs.entropy import PlaneCoder
from ckptstore.format.codecs.halving import Halver, best_offset
from ckptstore.format.codecs.planar import Plan, Way
from ckptstore.format.codecs.words import Words

_HALVES_GAIN = 0.97
"""Halves are coded twice as fast, and a sample makes their many symbols dearer than they are in the whole."""


def planned(sample: Words, *, rotated: bool) -> Plan:
    """The plan that is best for a sample of the words."""
    cut, coder = Cut(sample.itemsize, rotated), PlaneCoder()
    found = [_best_way(plane, coder) for plane in Cutter(cut, len(sample)).cut(sample)]
    ways, share = tuple(way for way, _ in found), sum(size for _, size in found) / max(sample.nbytes, 1)
    half = cut.width // 2
    if half > 1 and not any(way.coded for way in ways[half:]):
        return Plan(Cut(cut.width, rotated, kept=True), ways[: half + 1], share)
    return Plan(cut, ways, share)


def _best_way(plane: Plane, coder: PlaneCoder) -> tuple[Way, float]:
    """And the size to expect."""
    whole = len(coder.encode(plane))
    if whole >= len(plane):
        return Way(coded=False), len(plane)
    if whole == 1:
        return Way(coded=True), 1
    offset = best_offset(plane)
    halved = _HALVES_GAIN * sum(len(coder.encode(half)) for half in Halver(len(plane)).halve(plane, offset))
    return (Way(coded=True, offset=offset), halved) if halved < whole else (Way(coded=True), whole)
