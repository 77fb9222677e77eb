"""Which codec suits a chunk: sample, estimate, and encode with what seems smallest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.base import READ, Effort, Form
from ckptstore.format.codecs.delta import Delta
from ckptstore.format.codecs.layout import Plan
from ckptstore.format.codecs.planes import Planes
from ckptstore.format.codecs.planning import CODED
from ckptstore.format.codecs.zstd import Zstd

_NUMBERS = 1 << 14  # in smaller chunks there is less to save than finding out costs
_WORTH = 0.98  # raw bytes can be mapped and need no decoding
_MUCH = 0.5  # otherwise a fast disk has written a chunk before it is encoded
_RELYING: tuple[Effort, ...] = ("auto", "best")
_JOINED, _ONTO = 1.0, 0.75
"""What reading a byte takes beside `Plan.work`: of a coded chunk, and of a difference beside its base."""


class Candidate(NamedTuple):
    """A codec, and how to encode; the size to expect as a share of the raw one, `Encoded.alone` and `added`."""

    codec: int
    share: float
    encode: Callable[[], Buffer]
    alone: float
    added: float = 0.0


def candidates(raw: memoryview, form: Form, base: memoryview | None, level: Effort, reliance: float) -> list[Candidate]:
    """What seems worth its time, the most promising first: three digits of a share are what a sample can tell."""
    found = sorted(_candidates(raw, form, base, level, reliance), key=lambda each: float(f"{each.share:.2e}"))
    return [candidate for candidate in found if candidate.share < worth(level)]


def differs_little(raw: memoryview, form: Form, base: memoryview, reliance: float) -> bool:
    """See `codecs.differs_little`."""
    alone = min(Zstd().share(raw), Planes().plans(raw, form)[0].share)
    return Delta().plan(raw, form, base).share < reliance * alone


def worth(level: Effort) -> float:
    """The share of the raw bytes that an encoding must stay below."""
    return _MUCH if level == "light" else _WORTH


def _candidates(
    raw: memoryview, form: Form, base: memoryview | None, level: Effort, reliance: float
) -> Iterator[Candidate]:
    zstd, planes, delta = Zstd(), Planes(), Delta()
    plain = zstd.share(raw)
    yield Candidate(zstd.number, plain, partial(zstd.encode, raw), _JOINED + CODED)
    if level == "light" or len(raw) < _NUMBERS:
        return
    plans = planes.plans(raw, form, thorough=level == "best")
    for plan in plans:
        yield Candidate(planes.number, plan.share, partial(planes.encode_as, plan, raw), _JOINED + plan.work)
    if base is not None and len(base) == len(raw) and level in _RELYING:
        change = delta.plan(raw, form, base)
        if change.share < reliance * min(plain, plans[0].share):
            alone, added = _alone(plain, plans), _ONTO + change.work
            yield Candidate(delta.number, change.share, partial(delta.encode_as, change, raw, base), alone, added)


def _alone(plain: float, plans: Sequence[Plan]) -> float:
    """What reading the smallest encoding that needs no base takes."""
    best = min(plans, key=lambda plan: plan.share)
    if min(plain, best.share) >= _WORTH:
        return READ
    return _JOINED + (best.work if best.share <= plain else CODED)
