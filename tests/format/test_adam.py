from __future__ import annotations

import hashlib
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ckptstore.chunkstore.later import LOOPS
from ckptstore.errors import CorruptData
from ckptstore.format.codecs import codec_numbered
from ckptstore.format.codecs.adam import Adam
from ckptstore.format.codecs.adam_arithmetic import Kind, Number, Prediction, Rounding
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.format.codecs.base import NoGain
from ckptstore.testing.memory import peak_of

STEP = Step(1e-3, (0.9, 0.999), 1e-8, 0.01, decoupled=True, count=30, number=Number.FLOAT32)
DTYPES = {torch.float32: Number.FLOAT32, torch.bfloat16: Number.BFLOAT16}


def view(tensor):
    return memoryview(tensor.detach().clone().reshape(-1).view(torch.uint8).numpy())


def decoded(payload, size, bases):
    out = bytearray(size)
    codec_numbered(4).decode(memoryview(payload), memoryview(out), bases)
    return bytes(out)


class Trained:
    """A weight and its moments before and after a real step of an optimizer."""

    def __init__(self, cls=torch.optim.AdamW, dtype=torch.float32, count=30, size=20_000, schedule=1.0, **settings):
        noise = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter((torch.randn(size, generator=noise) * 0.05).to(dtype))
        self.optimizer = cls([self.weight], **{"lr": 1e-4} | settings)
        for _ in range(count):
            self.before = self.tensors()
            spread = torch.randn(size, generator=noise).mul(0.5).exp()
            self.weight.grad = torch.randn(size, generator=noise).mul(spread).mul(0.01).to(dtype)
            self.optimizer.step()
            self.optimizer.param_groups[0]["lr"] *= schedule
        self.after = self.tensors()

    def tensors(self):
        kept = self.optimizer.state.get(self.weight, {})
        moments = [kept[name] for name in ("exp_avg", "exp_avg_sq") if name in kept]
        return [view(tensor) for tensor in (self.weight, *moments)]

    @property
    def step(self):
        group, kept = self.optimizer.param_groups[0], self.optimizer.state[self.weight]
        return Step(
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
            count=float(kept["step"]),
            number=DTYPES[self.weight.dtype],
            single=isinstance(group["lr"], torch.Tensor),
        )

    def chunks(self, kind):
        """What is to be encoded, and its bases."""
        (weight, first, second), (new_weight, new_first, new_second) = self.before, self.after
        if kind is Kind.WEIGHT:
            return new_weight, [weight, new_first, new_second]
        return new_second, [second, first, new_first]

    def share(self, kind, *steps):
        """Of the raw bytes, what is stored; decoded to be sure."""
        raw, bases = self.chunks(kind)
        payload = Adam(kind, steps or [self.step]).encode(raw, bases=bases)
        assert decoded(payload, len(raw), bases) == raw
        return len(payload) / len(raw)


WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}]
DECAYS = [{"weight_decay": 0.0}, {"weight_decay": 0.1}]


@pytest.mark.parametrize("decay", DECAYS, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_a_step_leaves_next_to_nothing_to_store(cls, dtype, way, decay):
    trained = Trained(cls, dtype, **way, **decay)
    unrounded = dtype is torch.bfloat16 and "fused" in way  # the moments that the weight was made with are not stored
    assert trained.share(Kind.WEIGHT) < (0.006 if unrounded else 0.003)
    assert trained.share(Kind.SECOND) < 0.05


@pytest.mark.parametrize("way", [{"foreach": False}, {"fused": True}], ids=str)
def test_the_learning_rate_may_be_a_tensor(way):
    trained = Trained(lr=torch.tensor(1e-4), weight_decay=0.1, **way)
    assert trained.share(Kind.WEIGHT) < 0.003


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_steps_are_predicted_too(dtype):
    trained = Trained(dtype=dtype, count=2)
    assert trained.share(Kind.WEIGHT) < 0.003
    assert trained.share(Kind.SECOND) < 0.25


def test_maximising_is_a_step_like_others():
    trained = Trained(maximize=True)
    assert trained.share(Kind.WEIGHT) < 0.003
    assert trained.share(Kind.SECOND) < 0.05


def test_the_step_that_fits_is_taken():
    trained = Trained(schedule=0.9)
    now = trained.step
    then = replace(now, lr=now.lr / 0.9)
    assert trained.share(Kind.WEIGHT, now, then) == trained.share(Kind.WEIGHT, then) < 0.003
    assert trained.share(Kind.WEIGHT, now) > 0.05


@pytest.mark.parametrize("kind", Kind)
def test_other_bytes_are_declined(kind):
    raw, bases = Trained().chunks(kind)
    noise = memoryview(np.random.default_rng(0).bytes(len(raw)))
    with pytest.raises(NoGain):
        Adam(kind, [STEP]).encode(noise, bases=bases)


@pytest.mark.parametrize(
    "step",
    [
        replace(STEP, count=0),
        replace(STEP, lr=1e-30),
        replace(STEP, eps=1e30),
        replace(STEP, number=Number.BFLOAT16, betas=(0.0, 1.0), lr=float("nan")),
    ],
    ids=["not begun", "tiny lr", "huge eps", "nan"],
)
def test_steps_that_nobody_takes_are_declined(step):
    raw, bases = Trained().chunks(Kind.WEIGHT)
    with pytest.raises(NoGain):
        Adam(Kind.WEIGHT, [step]).encode(raw, bases=bases)


@pytest.mark.parametrize("lengths", [(8, 8), (8, 8, 8, 8), (8, 8, 4), ()])
def test_bases_that_do_not_fit(lengths):
    bases = [memoryview(bytes(length)) for length in lengths]
    with pytest.raises(NoGain):
        Adam(Kind.WEIGHT, [STEP]).encode(memoryview(bytes(8)), bases=bases)
    payload = struct.pack("<BBB5x4d", 0, 0, 0, 1, 1, 1, 1) + bytes.fromhex(NOTHING_MISSED[Number.FLOAT32])
    with pytest.raises(CorruptData, match="bases"):
        decoded(payload, 8, bases)


@pytest.mark.parametrize("coefficient", [0.0, 2.0**-51, 2.0**51, float("inf"), float("nan")])
def test_coefficients_that_machines_would_not_agree_on(coefficient):
    """With no numbers for coefficients the bits depend on which of two comes first."""
    bases = [memoryview(bytes(32768))] * 3
    payload = struct.pack("<BBB5x4d", 0, 0, 0, 1, 1, 1, coefficient) + bytes.fromhex(NOTHING_MISSED[Number.FLOAT32])
    with pytest.raises(CorruptData, match="coefficients"):
        decoded(payload, 32768, bases)


def test_differences_of_another_width():
    bases = [memoryview(bytes(32768))] * 3
    payload = struct.pack("<BBB5x4d", 0, Number.BFLOAT16, 0, 1, 1, 1, 1) + bytes.fromhex(NOTHING_MISSED[Number.FLOAT32])
    with pytest.raises(CorruptData, match="width"):
        decoded(payload, 32768, bases)


# any bytes


def words(number, count):
    """Any words, and often the ones that arithmetic finds hard."""
    special = [0, 1, 0x7F, 0x80, 0x81, 0x2680, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF]
    signed = [word | sign for word in special for sign in (0, 0x8000)]
    width = number.width * 8
    hard = st.sampled_from([word << (width - 16) | low for word in signed for low in {0, (1 << (width - 16)) - 1}])
    return hnp.arrays(f"<u{number.width}", count, elements=hard | st.integers(0, (1 << width) - 1))


steps = st.builds(
    Step,
    lr=st.sampled_from([0.0, 1e-3]) | st.floats(0, 1e3),
    betas=st.just((0.9, 0.999)) | st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
    eps=st.sampled_from([0.0, 1e-8]) | st.floats(0, 1),
    weight_decay=st.sampled_from([0.0, 0.1]) | st.floats(0, 1e3),
    decoupled=st.booleans(),
    count=st.integers(0, 10_000).map(float),
    number=st.sampled_from(Number),
    single=st.booleans(),
)


@given(steps, st.sampled_from(Kind), st.integers(0, 300), st.data())
def test_bytes_come_back_or_are_declined(step, kind, count, data):
    raw, *bases = (data.draw(words(step.number, count)).view(np.uint8).data for _ in range(4))
    try:
        payload = Adam(kind, [step]).encode(raw, bases=bases)
    except NoGain:
        return
    assert decoded(payload, len(raw), bases) == raw


@given(steps, st.sampled_from(Kind), st.data())
def test_what_is_nearly_as_predicted_comes_back(step, kind, data):
    bases = [np.tile(data.draw(words(step.number, 40)), 20) for _ in range(3)]
    for prediction in step.predictions(kind):
        made = prediction.words(bases)
        made[data.draw(st.integers(0, 799))] ^= data.draw(st.integers(0, 1 << 15))
        raw, *others = (array.view(np.uint8).data for array in (made, *bases))
        payload = Adam(kind, [step]).encode(raw, bases=others)
        assert decoded(payload, len(raw), others) == raw


# the same everywhere


def fixed_bases(number):
    """Numbers of all sizes, and then such as training has."""
    count = np.arange(3 * 4096, dtype=np.uint64)
    wild = (count * 0x9E3779B97F4A7C15 >> np.uint64(64 - 8 * number.width)).astype(f"<u{number.width}")
    tame = ((count * 0x9E3779B97F4A7C15 >> np.uint64(41)) + np.uint64(0x3A000000)).astype("<u4")
    tame = tame if number is Number.FLOAT32 else (tame >> np.uint32(16)).astype("<u2")
    return [np.concatenate([wild[part::3], tame[part::3]]).view(np.uint8).data for part in range(3)]


FACTORS = {
    Kind.WEIGHT: (0.99999, -0.0010372, 0.1717, 1e-8),
    Kind.SECOND: (0.9, 0.999),
}
EXTREME = {
    Kind.WEIGHT: (2.0**-50, 2.0**-50, 2.0**-50, 2.0**-50),
    Kind.SECOND: (2.0**-26, 1 - 2.0**-26),
}
NOTHING_MISSED = {
    Number.FLOAT32: "0408000208000800080008000100000001000000010000000100000000000000",
    Number.BFLOAT16: "020800020800080001000000010000000000",
}
GOLDEN = {
    (Kind.WEIGHT, Number.FLOAT32, Rounding.EACH): "d08ee94ecb04b209",
    (Kind.WEIGHT, Number.FLOAT32, Rounding.LAST): "d08ee94ecb04b209",
    (Kind.WEIGHT, Number.BFLOAT16, Rounding.EACH): "5be0cfe6f7ce290f",
    (Kind.WEIGHT, Number.BFLOAT16, Rounding.LAST): "4e4b444ccefc3504",
    (Kind.SECOND, Number.FLOAT32, Rounding.EACH): "a024600ef9a2b6aa",
    (Kind.SECOND, Number.FLOAT32, Rounding.LAST): "a024600ef9a2b6aa",
    (Kind.SECOND, Number.BFLOAT16, Rounding.EACH): "cd631c16d397eb30",
    (Kind.SECOND, Number.BFLOAT16, Rounding.LAST): "cd631c16d397eb30",
}


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("number", Number)
@pytest.mark.parametrize("kind", Kind)
def test_every_version_on_every_machine_decodes_the_same(kind, number, rounding):
    header = struct.pack("<BBB5x", kind, number, rounding) + np.array(FACTORS[kind]).tobytes()
    payload = header + bytes.fromhex(NOTHING_MISSED[number])
    found = decoded(payload, 8192 * number.width, fixed_bases(number))
    assert hashlib.sha256(found).hexdigest()[:16] == GOLDEN[kind, number, rounding]


def in_thread(flush, work, *arguments):
    with ThreadPoolExecutor(1, initializer=torch.set_flush_denormal, initargs=(flush,)) as threads:
        return threads.submit(work, *arguments).result()


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor always keeps denormal numbers")
@pytest.mark.parametrize("number", Number)
@pytest.mark.parametrize("kind", Kind)
def test_a_thread_that_flushes_denormal_numbers_decodes_the_same(kind, number):
    bases = list(np.random.default_rng(0).integers(0, 1 << 32, (3, 100_000), np.uint32).astype(f"<u{number.width}"))
    for rounding, factors in product(Rounding, (FACTORS[kind], EXTREME[kind])):
        prediction = Prediction(kind, number, rounding, factors)
        assert prediction.usable
        kept, flushed = (in_thread(flush, prediction.words, bases) for flush in (False, True))
        assert np.array_equal(kept, flushed)


# hostile payloads


@given(st.binary(max_size=200), st.sampled_from([0, 4, 8, 100]))
def test_any_payload_is_corrupt_or_decodes(payload, size):
    bases = [memoryview(bytes(size))] * 3
    try:
        decoded(payload, size, bases)
    except CorruptData:
        return


@given(st.data())
def test_a_damaged_payload_is_corrupt_or_decodes(data):
    trained = Trained(count=2, size=100)
    raw, bases = trained.chunks(Kind.SECOND)
    payload = bytearray(Adam(Kind.SECOND, [trained.step]).encode(raw, bases=bases))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decoded(payload, len(raw), bases)
    except CorruptData:
        return


def test_a_bomb_takes_no_memory():
    bomb = zstandard.compress(bytes(1 << 28))
    planes = bytes([4, 8, 0, 2, *[8, 0] * 4]) + struct.pack("<4I", len(bomb), 1, 1, 1) + bomb + bytes(3)
    bases = [memoryview(bytes(4096))] * 3

    def refused():
        with pytest.raises(CorruptData, match="a plane does not hold"):
            decoded(struct.pack("<BBB5x4d", 0, 0, 0, 1, 1, 1, 1) + planes, 4096, bases)

    for _ in range(2):  # loops that it asks for may be compiled, and memory that these need is kept then
        refused()
        LOOPS.settle()
    assert peak_of(refused) < 1 << 20
