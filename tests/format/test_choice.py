import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.format.codecs import RAW, ZSTD, Effort, Form, codec_numbered, encode
from ckptstore.format.codecs.base import READ
from ckptstore.format.codecs.delta import Delta
from ckptstore.format.codecs.planes import Planes
from ckptstore.format.codecs.zstd import Zstd

PLANES, DELTA = codec_numbered(2), codec_numbered(3)
LEVELS: list[Effort] = ["none", "light", "fast", "auto", "best"]
FLOATS = Form(4, floating=True)


def raw_of(array):
    return np.ascontiguousarray(array).data.cast("B")


def trained(count, seed=0):
    return np.random.default_rng(seed).normal(0, 0.02, count).astype("<f4")


def check(raw, form, base, level):
    """Decodes what was encoded; gives the number of the codec."""
    encoded = encode(raw, form, base, level)
    out = memoryview(bytearray(len(raw)))
    bases = [base] if encoded.uses_base else []
    codec_numbered(encoded.codec).decode(memoryview(encoded.payload), out, bases)
    assert out == raw
    assert len(encoded.payload) <= len(raw)
    assert (encoded.codec == RAW.number) == (len(encoded.payload) == len(raw))
    assert encoded.uses_base == (encoded.codec == DELTA.number)
    return encoded.codec


@given(st.binary(max_size=3000), st.integers(0, 100), st.sampled_from([1, 2, 3, 4, 8]), st.booleans(), st.data())
def test_no_level_grows_or_loses_anything(data, times, width, floating, draws):
    raw = memoryview(data * times)
    base = draws.draw(st.none() | st.just(memoryview(bytes(len(raw)))) | st.just(memoryview(data)))
    for level in LEVELS:
        check(raw, Form(width, floating), base, level)


@pytest.mark.parametrize("size", [100, 300, 3000, 12_000, 20_000, 100_000, 1_000_000])
@pytest.mark.parametrize("level", LEVELS)
def test_zeros_shrink_and_noise_stays_raw(size, level):
    noise = memoryview(random.Random(0).randbytes(size))
    assert check(noise, FLOATS, memoryview(bytes(size)), level) == RAW.number
    assert (check(memoryview(bytes(size)), FLOATS, None, level) == RAW.number) == (level == "none" or size < 256)


def test_trained_floats_are_planes():
    for level in ("fast", "auto", "best"):
        assert check(raw_of(trained(100_000)), FLOATS, None, level) == PLANES.number
        assert check(raw_of(trained(100_000)), FLOATS, raw_of(trained(100_000, 1)), level) == PLANES.number


@pytest.mark.parametrize("level", ["auto", "best"])
@pytest.mark.parametrize(("moved", "careful"), [(0.003, PLANES), (0.001, DELTA)])
def test_another_chunk_is_relied_on_for_a_fiftieth_or_what_is_asked_for(moved, careful, level):
    before = trained(200_000)
    now = raw_of(before + np.random.default_rng(1).normal(0, moved, len(before)).astype("<f4"))
    saved = 1 - len(DELTA.encode(now, FLOATS, [raw_of(before)])) / len(encode(now, FLOATS, None, "auto").payload)
    assert saved > (1 / 8 if careful is DELTA else 1 / 50)
    assert encode(now, FLOATS, raw_of(before), level).codec == DELTA.number
    assert encode(now, FLOATS, raw_of(before), level, 7 / 8).codec == careful.number


@pytest.mark.parametrize("moved", [0.0001, 0.001, 0.01, 0.1, 0.139, 0.2])
def test_the_best_level_is_never_larger_than_auto(moved):
    """Also of numbers that it codes much better alone, so that the difference saves less beside that."""
    draw = np.random.default_rng(0)
    for before in (draw.uniform(0.5, 0.99, 100_000).astype("<f4"), trained(100_000)):
        now = (before * (1 + draw.normal(0, moved, len(before)))).astype("<f4")
        for array, base in ((now, before), (halves_of(now), halves_of(before))):
            form = Form(array.itemsize, floating=True)
            best, auto = (encode(raw_of(array), form, raw_of(base), level) for level in ("best", "auto"))
            assert len(best.payload) <= len(auto.payload)


def halves_of(array):
    return (array.view("<u4") >> np.uint32(16)).astype("<u2")


@pytest.mark.parametrize("count", [20_000, 300_001])
def test_a_difference_is_decoded_with_a_base_however_that_is_encoded(count):
    base = trained(count)
    raw, before = raw_of(base + trained(count, 1) * np.float32(0.001)), raw_of(base)
    payload = memoryview(DELTA.encode(raw, FLOATS, [before]))
    for codec, form in [(PLANES, FLOATS), (PLANES, Form(2)), (ZSTD, FLOATS), (RAW, FLOATS)]:
        out = memoryview(bytearray(len(raw)))
        codec.decode(memoryview(codec.encode(before, form)), out)
        Delta().decode_onto(payload, out)
        assert out == raw


@pytest.mark.parametrize("count", [10_003, 500_000])
def test_the_best_level_codes_mantissas_too(count):
    uniform = np.random.default_rng(0).uniform(-0.7, 0.7, count).astype("<f4")
    for form, array in ((FLOATS, uniform), (Form(2, floating=True), halves_of(uniform))):
        assert check(raw_of(array), form, None, "best") == PLANES.number
        assert len(encode(raw_of(array), form, None, "best").payload) < len(encode(raw_of(array), form).payload)


def test_the_best_level_tries_nothing_else_once_it_has_what_is_surely_smaller(monkeypatch):
    tried, encode_as = [], Planes.encode_as

    def watched(planes, plan, raw):
        tried.append(plan)
        return encode_as(planes, plan, raw)

    monkeypatch.setattr(Planes, "encode_as", watched)
    before = trained(100_000)
    moved = raw_of(before * np.float32(1.001))
    assert encode(moved, FLOATS, raw_of(before), "best").codec == DELTA.number
    assert tried == []
    encode(moved, FLOATS, None, "best")
    assert len(tried) == 2


def test_the_best_level_tries_the_next_where_a_sample_promised_too_much():
    """All that a sample sees of a chunk is as it was."""
    before, now = trained(200_000), np.random.default_rng(1).uniform(0.5, 1, 200_000).astype("<f4")
    for start in range(0, len(now) - 1023, (len(now) - 1024) // 7):
        before[start : start + 1024] = now[start : start + 1024]
    assert encode(raw_of(now), FLOATS, raw_of(before), "auto").codec == DELTA.number
    assert encode(raw_of(now), FLOATS, raw_of(before), "best").codec == PLANES.number


def test_the_best_level_tries_planes_though_another_sample_promised_more_of_zstd():
    rng = np.random.default_rng(0)
    rows = raw_of((rng.normal(0, 20, (1024, 1024)) * (rng.random((1024, 1)) < 0.5)).astype("<i4"))
    assert encode(rows, Form(4), None, "auto").codec == ZSTD.number
    assert encode(rows, Form(4), None, "best").codec == PLANES.number


@pytest.mark.parametrize("count", [1 << 12, 1 << 13, 1 << 14, 1 << 15])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_level_is_never_larger_than_auto_where_a_sample_tells_little(count, seed):
    draw = np.random.default_rng(seed)
    for numbers in (draw.normal(0, 1e-3, count) ** 2, draw.gamma(0.5, 1e-6, count)):
        for array in (numbers.astype("<f4"), halves_of(numbers.astype("<f4"))):
            form = Form(array.itemsize, floating=True)
            best, auto = (encode(raw_of(array), form, None, level) for level in ("best", "auto"))
            assert len(best.payload) <= len(auto.payload)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_zeros_make_no_codec_seem_better_than_it_is(share, seed):
    """As in gradients and moments of embeddings; a sample may meet many of them, or none."""
    rows = rows_of_which(share, seed)
    sizes = [len(codec.encode(rows, FLOATS)) for codec in (ZSTD, PLANES)]
    for level in ("fast", "auto", "best"):
        assert len(encode(rows, FLOATS, None, level).payload) <= 1.01 * min(sizes)


def rows_of_which(share, seed):
    """So many are not zeros."""
    rng = np.random.default_rng(seed)
    return raw_of(rng.normal(0, 0.02, (1024, 1024)).astype("<f4") * (rng.random((1024, 1)) < share).astype("<f4"))


def test_the_best_level_tries_zstd_whatever_a_sample_tells():
    """What repeats itself may do so farther apart than a sample is long."""
    numbers = np.random.default_rng(0).integers(0, 1 << 15, 1 << 13).astype("<i4")
    raw = raw_of(np.tile(numbers, 64))
    assert len(encode(raw, Form(4), None, "best").payload) < 0.01 * len(raw)


def test_what_moved_little_is_a_difference():
    before = trained(100_000)
    moved = raw_of(before * np.float32(1.001))
    assert check(moved, FLOATS, raw_of(before), "fast") == PLANES.number
    assert check(moved, FLOATS, raw_of(before), "auto") == DELTA.number
    assert check(moved, FLOATS, raw_of(before), "best") == DELTA.number
    assert check(moved, FLOATS, raw_of(before[1:]), "auto") == PLANES.number
    assert check(moved, FLOATS, raw_of(before), "none") == RAW.number


NOISE = memoryview(random.Random(0).randbytes(1 << 19))
UNEVEN = raw_of(np.random.default_rng(0).normal(0, 10, 1 << 19).astype(np.int8))


def best(raw, base=None):
    return encode(raw, FLOATS, base, "best", reliance=10)


def test_what_a_difference_adds_to_reading_follows_what_is_to_be_decoded():
    before = trained(1 << 17)
    sparse, far = before.copy(), raw_of(before * np.float32(1.01))
    sparse[::100] *= np.float32(1.01)
    alike, few, many = (best(raw, raw_of(before)) for raw in (raw_of(before), raw_of(sparse), far))
    assert 0.5 < alike.added < few.added < many.added < many.alone


def test_what_needs_no_base_adds_nothing():
    noise = raw_of(trained(1 << 17, 1))
    assert encode(noise, FLOATS, raw_of(trained(1 << 17)), "best").added == 0
    assert encode(noise, FLOATS, None, "best").added == 0


def test_what_reading_takes_alone_follows_what_is_to_be_decoded():
    as_it_is, coded, all_coded = (best(raw).alone for raw in (NOISE, raw_of(trained(1 << 17)), UNEVEN))
    assert as_it_is == READ < 1 < coded < all_coded


@pytest.mark.parametrize("raw", [NOISE, UNEVEN], ids=["noise", "uneven"])
def test_what_reading_takes_alone_is_the_same_beside_a_base(raw):
    found = best(raw, raw)
    assert (found.codec, found.alone) == (DELTA.number, best(raw).alone)


def kinds(count):
    """Name → form and array: what else is found in states."""
    draw = np.random.default_rng(0)
    return {
        "floats": (FLOATS, trained(count)),
        "halves": (Form(2, floating=True), trained(count).astype("<f2")),
        "doubles": (Form(8, floating=True), trained(count).astype("<f8")),
        "squares": (FLOATS, trained(count) ** 2),
        "sparse floats": (FLOATS, trained(count) * (draw.random(count) < 0.1)),
        "indices": (Form(8), np.arange(count, dtype="<i8")),
        "tokens": (Form(8), draw.zipf(1.3, count).clip(0, 50_000).astype("<i8")),
        "rows again": (Form(8), np.tile(draw.integers(0, 50_000, 100, "<i8"), count // 100)),
        "mask": (Form(), draw.random(count) < 0.5),
        "runs": (Form(1), np.repeat(draw.integers(0, 256, count // 50, "u1"), 50)),
        "text": (Form(1), np.frombuffer(b"".join(b"%d bottles; " % number for number in range(count // 8)), "u1")),
    }


@pytest.mark.parametrize("kind", kinds(1000))
def test_the_choice_is_hardly_larger_than_the_best(kind):
    form, array = kinds(1 << 17)[kind]
    raw = raw_of(array)
    best = min(len(codec.encode(raw, form)) for codec in (RAW, ZSTD, PLANES))
    for level in ("fast", "auto", "best"):
        assert len(encode(raw, form, None, level).payload) <= 1.02 * best


@pytest.mark.parametrize("count", [1 << 12, 1 << 16, 1 << 20])
def test_what_looks_at_more_is_not_larger(count):
    before = trained(count)
    for raw in (raw_of(before * np.float32(1.001)), raw_of(trained(count, 1)), raw_of(np.arange(count, dtype="<i4"))):
        sizes = [len(encode(raw, FLOATS, raw_of(before), level).payload) for level in LEVELS]
        assert sizes == sorted(sizes, reverse=True)


def test_a_chunk_that_a_frame_may_not_stand_for_stays_raw():
    huge = raw_of(np.zeros((256 << 20) + 1, np.uint8))
    assert encode(huge, FLOATS, None, "best").codec == RAW.number


def test_light_takes_what_shrinks_much_and_nothing_else():
    assert check(memoryview(bytes(1 << 16)), FLOATS, None, "light") == ZSTD.number
    assert check(raw_of(trained(1 << 14)), FLOATS, None, "light") == RAW.number
    rows = trained(1 << 20).reshape(1024, 1024)
    rows[::4] = 0  # 0.7 of it is left
    assert check(raw_of(rows), FLOATS, None, "light") == RAW.number
    rows[::2] = rows[1::4] = 0  # 0.24
    assert check(raw_of(rows), FLOATS, None, "light") == ZSTD.number


def test_light_goes_by_what_came_out_and_not_by_the_sample():
    numbers = trained(1 << 20)
    numbers[(1 << 19) :][: 1 << 18] = 0  # a sample is taken from the middle on
    numbers[-(1 << 14) :] = 0
    assert Zstd.share(Zstd.sample(raw_of(numbers))) < 0.5
    assert check(raw_of(numbers), FLOATS, None, "light") == RAW.number
