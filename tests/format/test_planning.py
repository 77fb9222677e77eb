"""What a sample tells is what coding all of it comes to."""

import numpy as np
import pytest

from ckptstore.format.codecs import Form, encode, tools
from ckptstore.format.codecs.compiled import CompiledLoops
from ckptstore.format.codecs.entropy import Coders, PlaneCoder
from ckptstore.format.codecs.layout import Cut, Way
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.planes import Planes
from ckptstore.format.codecs.planning import planned
from ckptstore.format.codecs.pool import Pool
from ckptstore.format.codecs.words import sampled

RUN, RUNS = 1024, 1024
BYTES = Cut(1)


def alike(run: np.ndarray, seed: int = 0) -> np.ndarray:
    """Runs of the same bytes, each in an order of its own, so that a sample has each as often as all have."""
    return np.random.default_rng(seed).permuted(np.tile(run, (RUNS, 1)), axis=1).reshape(-1)


def run_of(shares: dict[int, float]) -> np.ndarray:
    counts = {byte: round(share * RUN) for byte, share in shares.items()}
    first = next(iter(counts))
    counts[first] += RUN - sum(counts.values())
    return np.repeat(np.array(list(counts), np.uint8), list(counts.values()))


NEAR = {100 + place: 0.5**place / 2 for place in range(14)}
SPREAD = dict.fromkeys(range(0, 240, 4), 1 / 60)
PLANES = {
    "neighbours": NEAR,
    "neighbours around 0": {(byte + 152) % 256: share for byte, share in NEAR.items()},
    "with others": {100: 0.4, 101: 0.3, 102: 0.2, 103: 0.08, 200: 0.02},
    "far apart": SPREAD,
    "nearly all one": {7: 1 - 1 / 64, 90: 1 / 64},
}


@pytest.mark.parametrize("plane", ["neighbours", "neighbours around 0", "with others", "far apart"])
def test_the_size_is_as_expected(plane):
    raw = alike(run_of(PLANES[plane]))
    plan = planned(sampled(raw), BYTES)
    size = len(Planes().encode_as(plan, raw.data))
    assert plan.share * len(raw) == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize(
    ("plane", "way"),
    [
        ("neighbours", Way(True, 4, 94)),  # the first of the offsets that have all of them
        ("neighbours around 0", Way(True, 4, 246)),
        ("with others", Way(True, 2, 100)),
        ("far apart", Way(coded=True)),
        ("nearly all one", Way(True, 0, 7)),
    ],
)
def test_the_way_is_the_smallest(plane, way):
    assert planned(sampled(alike(run_of(PLANES[plane]))), BYTES).ways == (way,)


def test_what_is_not_coded_and_what_is_alike():
    even = planned(np.random.default_rng(0).integers(0, 256, 8 * RUN, np.uint8), BYTES)
    assert even.ways == (Way(coded=False),)
    assert (even.share, even.work) == (1, 1)
    alike = planned(np.full(RUN, 7, np.uint8), BYTES)
    assert alike.ways == (Way(coded=True),)
    assert (alike.share, alike.work) == (1 / RUN, 1)


@pytest.mark.parametrize(
    ("loops", "onto", "joined", "placed"),
    [(Loops, False, 1, 9.8), (Loops, True, 1.2, 9.8), (CompiledLoops, False, 1, 3.3), (CompiledLoops, True, 0.75, 3.3)],
)
def test_work_grows_with_what_is_coded_and_with_what_is_put_in_its_place(monkeypatch, loops, onto, joined, placed):
    """2.7 for each byte that zstd decodes; those that are put in their places take longer where nothing is compiled."""
    monkeypatch.setattr(tools, "Loops", loops)
    monkeypatch.setattr(tools, "_POOL", Pool(tools.Tools))
    monkeypatch.setattr(tools.Tools, "speed_up", lambda *_, **__: None)
    samples = (sampled(alike(run_of(PLANES[name]))) for name in ("far apart", "nearly all one"))
    whole, few = (planned(sample, BYTES, onto=onto) for sample in samples)
    assert whole.work == pytest.approx(joined + 2.7)
    # the gaps are coded; the others are one byte for all
    assert few.work - joined == pytest.approx((2.7 + placed) / 64, rel=0.1)


def repeated() -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """What repeats itself, and what it was before where it is a difference that does."""
    rng = np.random.default_rng(0)
    lengths, rows = rng.integers(10, 512, 1024), rng.normal(0, 0.02, (4096, 256)).astype(np.float32)
    mask, some = np.arange(512) < lengths[:, None], rng.random((4096, 1)) < 0.1
    few = rng.random((4096, 1)) < 0.001
    return {
        "positions": (np.tile(np.arange(2048), 256), None),
        "a mask": (mask.astype(np.int64), None),
        "labels": (np.where(mask, rng.integers(0, 30_000, mask.shape), -100), None),
        "gradients of some rows": (np.where(some, rows, np.float32(0)), None),
        "some rows moved": (np.where(some, rows * np.float32(1.001), rows), rows),
        "few rows moved": (np.where(few, rows * np.float32(1.001), rows), rows),
    }


@pytest.mark.parametrize("name", repeated())
@pytest.mark.parametrize("level", ["auto", "best"])
def test_what_repeats_itself_is_searched_for(monkeypatch, name, level):
    """It takes no more than with the binding that always does."""
    now, then = repeated()[name]
    raw, base = raw_of(now), None if then is None else raw_of(then)
    form, sizes = Form(now.itemsize, floating=now.dtype.kind == "f"), []
    for coders in (tools.fastest_coders, plain_coders):
        monkeypatch.setattr(tools, "fastest_coders", coders)
        monkeypatch.setattr(tools, "_POOL", Pool(tools.Tools))
        sizes.append(len(encode(raw, form, base, level).payload))
    assert sizes[0] <= 1.003 * sizes[1]


def raw_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def plain_coders() -> Coders:
    coder = PlaneCoder()
    return Coders(coder, coder)


def test_a_binding_that_does_not_work_is_not_used(monkeypatch):
    def broken(*_, **__):
        raise SystemError

    monkeypatch.setattr("ckptstore.format.codecs.binding.Encoder.__init__", broken)
    with pytest.warns(UserWarning, match="binding for cffi does not work"):
        assert {type(coder) for coder in tools.fastest_coders()} == {PlaneCoder}
