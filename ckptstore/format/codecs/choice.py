"""Which codec suits a chunk: sample, estimate, and encode with what seems smallest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ckptstore.format.buffers import Buffer
from ckptstore.format.codecs.base import READ, Effort, Form
from ckptstore.format.codecs.delta import Delta
from ckptstore.format.codecs.layout import Plan
from ckptstore.format.codecs.planes import Planes, width_of
from ckptstore.format.codecs.zstd import Zstd

_NUMBERS = 1 << 14  # in smaller chunks there is less to save than finding out costs
UNSURE = 1 << 17
"""Of chunks of no more bytes samples tell too little to spare a second encoding, which takes little."""
_WORTH = 0.98  # raw bytes can be mapped and need no decoding
_MUCH = 0.5  # otherwise a fast disk has written a chunk before it is encoded
_RELYING: tuple[Effort, ...] = ("auto", "best")
_ZSTD = 3.7
"""What reading a byte of zstd's takes, as `Plan.work` is."""


class Candidate(NamedTuple):
    """A codec, and how to encode; the size to expect as a share of the raw one, `Encoded.alone` and `added`."""

    codec: int
    share: float
    encode: Callable[[], Buffer]
    alone: float
    added: float = 0.0


def candidates(raw: memoryview, form: Form, base: memoryview | None, level: Effort, reliance: float) -> list[Candidate]:
    """What seems worth its time, the most promising first.

    Of chunks of which a sample tells little, what a lower level would take is second, if not first.
    """
    plain, plans = _estimates(raw, form, level)
    alone = [*_alone(raw, plain, plans)]
    difference = _differences(raw, form, base, reliance, plain, plans) if level in _RELYING else ()
    lower = _ranked([*alone, *difference], level)
    found = _ranked([*lower, *(_planned(plan, raw) for plan in plans[1:])], level)
    if len(raw) > UNSURE or not lower:
        return found
    return sorted(found, key=lambda each: (each is not found[0], each is not lower[0]))


def differs_little(raw: memoryview, form: Form, base: memoryview, reliance: float) -> bool:
    """See `codecs.differs_little`."""
    plain, plans = _estimates(raw, form, "auto")
    return Delta().plan(raw, form, base).share < reliance * min([plain, *(plan.share for plan in plans)])


def worth(level: Effort) -> float:
    """The share of the raw bytes that an encoding must stay below."""
    return _MUCH if level == "light" else _WORTH


def _ranked(found: Iterable[Candidate], level: Effort) -> list[Candidate]:
    """By their shares, of which a sample can tell three digits."""
    worthy = (candidate for candidate in found if candidate.share < worth(level))
    return sorted(worthy, key=lambda each: float(f"{each.share:.2e}"))


def _planned(plan: Plan, raw: memoryview) -> Candidate:
    planes = Planes()
    return Candidate(planes.number, plan.share, partial(planes.encode_as, plan, raw), plan.work)


def _alone(raw: memoryview, plain: float, plans: Sequence[Plan]) -> Iterator[Candidate]:
    """Encodings that need no base, one of each codec."""
    zstd = Zstd()
    yield Candidate(zstd.number, plain, partial(zstd.encode, raw), _ZSTD)
    yield from (_planned(plan, raw) for plan in plans[:1])


def _differences(
    raw: memoryview, form: Form, base: memoryview | None, reliance: float, plain: float, plans: Sequence[Plan]
) -> Iterator[Candidate]:
    """The encoding of what changed in the base, where that saves enough."""
    if not plans or base is None or len(base) != len(raw):
        return
    delta = Delta()
    change = delta.plan(raw, form, base)
    if change.share < reliance * min(plain, plans[0].share):
        alone, encode = _work_alone(plain, plans), partial(delta.encode_as, change, raw, base)
        yield Candidate(delta.number, change.share, encode, alone, change.work)


def _estimates(raw: memoryview, form: Form, level: Effort) -> tuple[float, list[Plan]]:
    """What zstd is expected to leave, and plans for planes, if they are worth a thought.

    One of their samples may have met more rows of zeros than the other. So zstd must also be better on the same one,
    except of bytes: those may be text, which repeats itself farther apart than samples see.
    """
    zstd, planes, thorough = Zstd(), Planes(), level == "best"
    stretches = zstd.sample(raw)
    plain = zstd.share(stretches)
    if level == "light" or len(raw) < _NUMBERS:
        return plain, []
    runs = planes.sample(raw, form)
    plans = planes.plans(runs, form, thorough=thorough)
    if plain >= plans[0].share or width_of(form) == 1:
        return plain, plans
    again = zstd.share(runs)
    if again < plans[0].share or plain < planes.plans(stretches, form)[0].share:
        return plain, plans
    return again, planes.plans(stretches + runs, form, thorough=thorough)


def _work_alone(plain: float, plans: Sequence[Plan]) -> float:
    """What reading the smallest encoding that needs no base takes."""
    best = min(plans, key=lambda plan: plan.share)
    if min(plain, best.share) >= _WORTH:
        return READ
    return best.work if best.share <= plain else _ZSTD
