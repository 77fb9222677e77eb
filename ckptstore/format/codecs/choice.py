"""Which codec suits a chunk: sample, estimate, and encode with what seems smallest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ckptstore.format.codecs.base import Buffer, Effort, Form
from ckptstore.format.codecs.delta import Delta
from ckptstore.format.codecs.planes import Planes
from ckptstore.format.codecs.zstd import Zstd

_NUMBERS = 1 << 14  # in smaller chunks there is less to save than finding out costs
_WORTH = 0.98  # raw bytes can be mapped and need no decoding
_MUCH = 0.7
_RELIANCE = 1 / 0.88
"""What a byte of a difference costs: another chunk must be read before, which takes as long again."""
_RELYING = ("auto", "best")


class Candidate(NamedTuple):
    """A codec, the size to expect as a share of the raw one, how to encode, and how many times its size it costs."""

    codec: int
    share: float
    encode: Callable[[], Buffer]
    dearness: float = 1.0


def candidates(raw: memoryview, form: Form, base: memoryview | None, level: Effort) -> list[Candidate]:
    """What seems worth its time, the most promising first."""
    found = sorted(_candidates(raw, form, base, level), key=lambda candidate: candidate.share * candidate.dearness)
    worth = _MUCH if level == "light" else _WORTH
    return [candidate for candidate in found if candidate.share * candidate.dearness < worth]


def _candidates(raw: memoryview, form: Form, base: memoryview | None, level: Effort) -> Iterator[Candidate]:
    zstd, planes, delta = Zstd(), Planes(), Delta()
    yield Candidate(zstd.number, zstd.share(raw), partial(zstd.encode, raw))
    if level == "light" or len(raw) < _NUMBERS:
        return
    for plan in planes.plans(raw, form, thorough=level == "best"):
        yield Candidate(planes.number, plan.share, partial(planes.encode_as, plan, raw))
    if base is not None and len(base) == len(raw) and level in _RELYING:
        change = delta.plan(raw, form, base)
        yield Candidate(delta.number, change.share, partial(delta.encode_as, change, raw, base), _RELIANCE)
