"""What each benchmark compares, and the figures it is to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.measuring import Samples

OWN, PEER = "ckptstore", "DCP"


@dataclass(frozen=True)
class Figure:
    """A figure to reach: a name, its value, the bound, and whether more or less is better."""

    name: str
    value: Callable[[Samples], float | None]
    bound: float
    unit: str = "x"
    more: bool = True

    def reached(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value >= self.bound if self.more else value <= self.bound


@dataclass(frozen=True)
class Comparison:
    """Two columns, how their ratio is described, the figures, the limits beside some rows, and the README's rows.

    Without `rows` all of them are the README's.
    """

    own: str
    peer: str
    describe: Callable[[float, float], str]
    figures: tuple[Figure, ...]
    limits: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] = ()


def ratio(over: float | None, under: float | None) -> float | None:
    """A ratio, when both were measured."""
    return None if over is None or not under else over / under


def _as_fast(own: float, peer: float) -> str:
    return f"**{peer / own:.1f}x** as fast"


def _the_time(own: float, peer: float) -> str:
    return f"**{own / peer:.2g}x** the time"


def _gain(row: str) -> Callable[[Samples], float | None]:
    """How many times as fast as the peer."""
    return lambda samples: ratio(samples.median(row, PEER), samples.median(row, OWN))


def _gain_on_the_best(row: str) -> Callable[[Samples], float | None]:
    """How many times as fast as the fastest peer."""

    def gain(samples: Samples) -> float | None:
        peers = [samples.median(row, column) for column in samples.values.get(row, {}) if column != OWN]
        return ratio(min((each for each in peers if each), default=None), samples.median(row, OWN))

    return gain


def _own(row: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.median(row, OWN)


def _auto(row: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.median(row, f"{OWN}, auto")


def _largest(samples: Samples) -> float | None:
    """The worst ratio of a size to the best peer's."""
    rows = [row for row in samples.values if row.endswith("share")]
    found = [ratio(samples.median(row, OWN), samples.median(row, BEST)) for row in rows]
    return max((each for each in found if each is not None), default=None)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _of_allowed(samples: Samples) -> float | None:
    return ratio(samples.median("read one tensor", OWN), 3e-3 + samples.sizes.get("tensor read alone", 0) / 3e9)


LOCAL = Comparison(
    OWN,
    PEER,
    _as_fast,
    (
        Figure("save all-new, throughput of the best peer", _gain_on_the_best("save all-new"), 1.15),
        Figure("save unchanged", _gain("save unchanged"), 15),
        Figure("save 95% frozen", _gain("save 95% frozen"), 10),
        Figure("load whole", _gain("load whole"), 2),
        Figure("load whole, new tensors", _gain("load whole, new tensors"), 2),
        Figure("load one tensor", lambda s: _scaled(s.median("load one tensor", OWN), 1e3), 20, "ms", more=False),
        Figure(
            "10,000 small tensors, of DCP's time",
            lambda s: ratio(s.median("save 10,000 x 1 KiB", OWN), s.median("save 10,000 x 1 KiB", PEER)),
            1,
            more=False,
        ),
        Figure(
            "a commit on top of many, of one on top of 10",
            lambda s: ratio(
                s.median("commit on top of many commits", OWN), s.median("commit on top of 10 commits", OWN)
            ),
            1.2,
            more=False,
        ),
        Figure("read one tensor, of 3 ms and its bytes at 3 GB/s", _of_allowed, 1, more=False),
        Figure("peak extra memory", _own("peak extra memory of a save, MiB"), 256, "MiB", more=False),
    ),
    {
        "save all-new": "write+fsync",
        "load whole": "memcpy",
        "load whole, new tensors": "memcpy",
        "load whole, cold": "disk read",
        "read one tensor": "memcpy of it",
    },
)

REMOTE = Comparison(
    OWN,
    PEER,
    _as_fast,
    (
        Figure("save all-new", _gain("save all-new"), 1),
        Figure("save unchanged", _gain("save unchanged"), 8),
        Figure("load whole", _gain("load whole"), 1),
        Figure("read rows", _gain("read rows"), 1),
        Figure("objects of an unchanged save", _own("save unchanged: objects"), 1, "", more=False),
        Figure("requests of reading rows", _own("read rows: requests"), 2, "", more=False),
    ),
    {"save all-new": "raw put", "load whole": "raw get"},
    (
        "save all-new",
        "save all-new: requests",
        "save unchanged",
        "save unchanged: requests",
        "save unchanged: MB stored",
        "load whole",
        "load whole: requests",
        "read rows",
        "read rows: requests",
    ),
)


BEST = "best peer"
CODECS = Comparison(
    OWN,
    BEST,
    lambda own, peer: f"**{own / peer:.3f}x**",
    (
        *(
            Figure(f"{kind}, {phase}", _own(f"{kind}, {phase}: share"), bound, "of raw", more=False)
            for kind, bound in (
                ("fp32 weights, 10 apart", 0.61),
                ("fp32 whole, 10 apart", 0.7),
                ("bf16 weights, 10 apart", 0.16),
                ("bf16 whole, 10 apart", 0.35),
                ("fp32 weights, alone", 0.83),
                ("bf16 weights, alone", 0.664),
            )
            for phase in ("peak", "decayed")
        ),
        *(
            Figure(f"{act} {kind}", _auto(f"{act} {kind}, alone: GB/s"), bound, "GB/s")
            for act, bound in (("encode", 1.5), ("decode", 3.0))
            for kind in ("fp32 weights", "bf16 weights")
        ),
        Figure("the largest size, of the best peer's", _largest, 1, more=False),
    ),
)


def _least_gain(row: str) -> Callable[[Samples], float | None]:
    """The smallest gain, of any number of ranks."""

    def least(samples: Samples) -> float | None:
        found = [_gain(each)(samples) for each in samples.values if each.endswith(f"ranks, {row}")]
        return min((each for each in found if each is not None), default=None)

    return least


DISTRIBUTED = Comparison(
    OWN,
    PEER,
    _as_fast,
    (
        Figure("save all-new", _least_gain("save all-new"), 1),
        Figure("save unchanged", _least_gain("save unchanged"), 8),
        Figure("load whole", _least_gain("load whole"), 1),
        Figure("4 ranks read, of what they need", _own("4 ranks, load whole: read, share"), 1.1, "", more=False),
        Figure("reports of 100,000 chunks", _own("1,024 ranks, all they send: MB"), 10, "MB", more=False),
    ),
)


AT_ONCE = "ckptstore, at once"


def _of_peer(row: str, column: str = OWN) -> Callable[[Samples], float | None]:
    """The share of the peer's time."""
    return lambda samples: ratio(samples.median(row, column), samples.median(row, PEER))


STALLS = Comparison(
    OWN,
    PEER,
    _the_time,
    (
        Figure("all-new, copied at once", _of_peer("all-new", AT_ONCE), 0.5, more=False),
        Figure("all-new", _of_peer("all-new"), 0.1, more=False),
        Figure("95% frozen", _of_peer("95% frozen"), 0.2, more=False),
        Figure("95% frozen, copied at once", _of_peer("95% frozen", AT_ONCE), 0.2, more=False),
        Figure("first call", _of_peer("first call"), 0.2, more=False),
        Figure("first call of a process", _of_peer("first call of a process"), 0.2, more=False),
        Figure("lost to a save", _of_peer("lost to a save"), 1 / 3, more=False),
    ),
)


def growth(few: str, many: str) -> Comparison:
    """A catalog of many commits beside one of few."""

    def grown(row: str) -> Callable[[Samples], float | None]:
        return lambda samples: ratio(samples.median(row, many), samples.median(row, few))

    flat = ("commit", "look up a path", "find", "latest")
    listing = [f"{row}, per commit" for row in ("steps", "log", "plan gc", "gc to the last 3")]
    rows = (*flat, "gc of a commit", *listing, "commit, after that", "plan gc, after that")
    return Comparison(many, few, _the_time, tuple(Figure(row, grown(row), 1.5, more=False) for row in flat), rows=rows)


def _levels(row: str, own: str, peer: str) -> Callable[[Samples], float | None]:
    return lambda samples: ratio(samples.median(row, own), samples.median(row, peer))


LEVELS = Comparison(
    "auto",
    "none",
    _the_time,
    (
        Figure("commit 1, auto to none", _levels("commit 1", "auto", "none"), 1.1, more=False),
        Figure("commit a later one, auto to none", _levels("commit a later one", "auto", "none"), 1.1, more=False),
        Figure(
            "checkout a later one, best to best without parents",
            _levels("checkout a later one", "best", "best, alone"),
            1.5,
            more=False,
        ),
        Figure(
            "checkout a later one, cold, fast, to the disk's own reading",
            _levels("checkout a later one, cold", "disk read", "fast"),
            1.1,
        ),
    ),
)


BARE = "bare copy"


def _milliseconds(row: str) -> Callable[[Samples], float | None]:
    return lambda samples: _scaled(samples.median(row, OWN), 1e3)


CUDA = Comparison(
    OWN,
    BARE,
    _the_time,
    (
        Figure(
            "staging to the host, of the pinned copy's rate",
            lambda s: ratio(s.median("all-new, no room", BARE), s.median("all-new, no room", OWN)),
            0.9,
        ),
        Figure("unchanged", _milliseconds("unchanged"), 15, "ms", more=False),
        Figure("all-new, room on the device", _milliseconds("all-new, room on the device"), 15, "ms", more=False),
        Figure("first call, of DCP's", _of_peer("first call, room on the device"), 0.2, more=False),
        Figure("all-new, room on the device, of DCP's", _of_peer("all-new, room on the device"), 0.1, more=False),
        Figure("unchanged, of DCP's", _of_peer("unchanged"), 0.1, more=False),
        Figure("checkout", _gain("checkout"), 2),
    ),
)
