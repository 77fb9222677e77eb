import random
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ckptstore.errors import CorruptData
from ckptstore.format import packs
from ckptstore.format.codecs import RAW, ZSTD, Form, codec_numbered
from ckptstore.format.codecs.compiled import CompiledLoops
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.words import BLOCK_WORDS
from ckptstore.testing.memory import peak_of
from tests.format.test_unpacking import only

PLANES, DELTA = codec_numbered(2), codec_numbered(3)

FORMS = [Form(width, floating) for width in (1, 2, 4, 8, 3, 16) for floating in (False, True)]
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0, 6e-8, 5e-324, 1e300]


@st.composite
def chunks(draw):
    """A form and some bytes of it: any, near to each other, special floats with any payload, or few values."""
    form = draw(st.sampled_from(FORMS))
    kind = draw(st.sampled_from(["any", "floats", "few", "runs"]))
    if kind == "floats" and form.width in {2, 4, 8}:
        numbers = draw(st.lists(st.sampled_from(SPECIAL) | st.floats(width=8 * form.width), max_size=200))
        with np.errstate(over="ignore"):
            return form, np.array(numbers).astype(f"<f{form.width}").tobytes()
    if kind == "few":
        size, seed = draw(st.integers(0, 20_000)), draw(st.integers(0, 9))
        return form, bytes(random.Random(seed).choices(draw(st.binary(min_size=1, max_size=20)), k=size))
    if kind == "runs":
        return form, draw(st.binary(max_size=8)) * draw(st.integers(0, 4000)) + draw(st.binary(max_size=9))
    return form, draw(st.binary(max_size=3000))


def back(codec, payload, length, bases=()):
    out = memoryview(bytearray(length))
    codec.decode(memoryview(payload), out, bases)
    return out


def noise(size, seed=0):
    return memoryview(random.Random(seed).randbytes(size))


def trained(count, seed=0, scale=0.02):
    return np.random.default_rng(seed).normal(0, scale, count).astype("<f4")


def raw_of(array):
    return memoryview(array).cast("B")


@given(chunks())
@example((Form(4, True), b""))
@example((Form(8, True), b"1234567"))
def test_planes_give_back_every_byte(chunk):
    form, data = chunk
    assert back(PLANES, PLANES.encode(memoryview(data), form), len(data)) == data


@given(chunks(), st.data())
def test_differences_give_back_every_byte(chunk, draws):
    form, data = chunk
    seed = draws.draw(st.integers(0, 3))
    changed = bytes(byte ^ (seed and random.Random(seed * place).getrandbits(seed)) for place, byte in enumerate(data))
    other = draws.draw(st.binary(min_size=len(data), max_size=len(data))) if len(data) < 300 else changed
    base = [memoryview(draws.draw(st.sampled_from([changed, other, bytes(len(data))])))]
    assert back(DELTA, DELTA.encode(memoryview(data), form, base), len(data), base) == data


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("count", [BLOCK_WORDS - 1, BLOCK_WORDS, 2 * BLOCK_WORDS + 3])
def test_many_blocks(form, count):
    data = raw_of(trained(-(-count * form.width // 4)))[: count * form.width + 1]
    base = [raw_of(trained(-(-len(data) // 4), scale=0.021))[: len(data)]]
    assert back(PLANES, PLANES.encode(data, form), len(data)) == data
    assert back(DELTA, DELTA.encode(data, form, base), len(data), base) == data


@pytest.mark.parametrize("bits", [0, 1, 0x7F800000, 0x7F800001, 0xFFC00000, 0x80000000, 0x007FFFFF])
def test_every_kind_of_float_beside_every_other(bits):
    ours = np.random.default_rng(0).choice(np.array([bits, 0x3F800000, 0x7FFFFFFF, 1], "<u4"), 5000)
    base = [raw_of(np.full(5000, bits, "<u4"))]
    for form in (Form(4, True), Form(4)):
        assert back(PLANES, PLANES.encode(raw_of(ours), form), 20_000) == raw_of(ours)
        assert back(DELTA, DELTA.encode(raw_of(ours), form, base), 20_000, base) == raw_of(ours)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("size", [10_000, 100_001, 4 << 20])
def test_noise_hardly_grows(form, size):
    data, base = noise(size), [noise(size, 1)]
    for payload in (PLANES.encode(data, form), DELTA.encode(data, form, base)):
        assert len(payload) < 1.001 * size + 64


def test_what_shrinks_by_how_much():
    normals = trained(1 << 20)
    halves = raw_of((normals.view("<u4") >> np.uint32(16)).astype("<u2"))
    later = raw_of((normals * np.float32(1.001)).astype("<f4"))
    assert len(PLANES.encode(raw_of(normals), Form(4, True))) < 0.833 * (4 << 20)
    assert len(PLANES.encode(halves, Form(2, True))) < 0.664 * (2 << 20)
    assert len(DELTA.encode(later, Form(4, True), [raw_of(normals)])) < 0.6 * (4 << 20)
    assert len(PLANES.encode(memoryview(bytes(4 << 20)), Form(4, True))) < 300
    counters = raw_of(np.arange(100_000, dtype="<i8"))
    assert len(PLANES.encode(counters, Form(8))) < 0.2 * len(counters)
    assert len(DELTA.encode(counters, Form(8), [raw_of(np.arange(5, 100_005, dtype="<i8"))])) < 100


@pytest.mark.parametrize("form", [Form(), Form(2, True), Form(4), Form(8, True)], ids=str)
def test_no_payload_stands_for_more_than_a_frame_may(form):
    for size in (1, 1000, 1 << 20, (16 << 20) + 5):
        zeros = memoryview(bytes(size))
        assert size <= packs._most_raw(len(PLANES.encode(zeros, form)))
        assert size <= packs._most_raw(len(DELTA.encode(zeros, form, [zeros])))


@settings(max_examples=300)
@given(chunks(), st.sampled_from([PLANES, DELTA]), st.data())
def test_damaged_payloads_raise_or_decode_to_their_length(chunk, codec, draws):
    form, data = chunk
    assume(len(data) > 0)
    base = [memoryview(data)[::-1]] if codec is DELTA else []
    base = [memoryview(bytes(each)) for each in base]
    payload = bytearray(codec.encode(memoryview(data), form, base))
    for _ in range(draws.draw(st.integers(1, 4))):
        place = draws.draw(st.integers(0, min(len(payload), 60) - 1) | st.integers(0, len(payload) - 1))
        payload[place] = draws.draw(st.integers(0, 255))
    length = draws.draw(st.sampled_from([len(data), len(data), 0, 1, len(data) + 1, 2 * len(data)]))
    try:
        back(codec, payload, length, base)
    except CorruptData:
        return
    assert codec is PLANES or length == len(data)


@given(st.binary(max_size=200), st.sampled_from([PLANES, DELTA]), st.integers(0, 300))
def test_hostile_payloads_raise_or_decode_to_their_length(payload, codec, length):
    try:
        back(codec, payload, length, [memoryview(bytes(length))] if codec is DELTA else [])
    except CorruptData:
        return


@pytest.mark.parametrize("codec", [PLANES, DELTA])
@pytest.mark.parametrize("form", [Form(), Form(2, True), Form(4, True)], ids=str)
def test_every_cut_and_every_other_length_is_refused(codec, form):
    data = raw_of(trained(50))
    bases = [raw_of(trained(50, 1))] if codec is DELTA else []
    payload = memoryview(codec.encode(data, form, bases))
    for cut in range(len(payload)):
        with pytest.raises(CorruptData):
            back(codec, payload[:cut], len(data), bases)
    for length in (0, len(data) - 1, len(data) + 1):
        with pytest.raises(CorruptData):
            back(codec, payload, length, [memoryview(bytes(length)) for _ in bases])


def test_threads_do_not_disturb_each_other():
    kinds = [(form, raw_of(trained(60_000 + 1000 * seed, seed))) for seed, form in enumerate(FORMS)]
    base = [memoryview(bytes(len(raw))) for _, raw in kinds]

    def there_and_back(number):
        (form, raw), older = kinds[number % len(kinds)], [base[number % len(kinds)]]
        same = all(back(codec, codec.encode(raw, form), len(raw)) == raw for codec in (ZSTD, PLANES))
        return same and back(DELTA, DELTA.encode(raw, form, older), len(raw), older) == raw

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(there_and_back, range(10 * len(kinds))))


def test_a_difference_needs_its_base():
    data, base = raw_of(trained(50)), raw_of(trained(50, 1))
    payload = DELTA.encode(data, Form(4, True), [base])
    for bases in ([], [base[:-4]], [base, base]):
        with pytest.raises(CorruptData, match="needs one base of as many"):
            back(DELTA, payload, len(data), bases)


def test_a_frame_that_claims_much_reserves_nothing():
    data = raw_of(trained(50_000))
    payload = bytearray(PLANES.encode(data, Form(4, True)))
    frame = payload.index(b"\x28\xb5\x2f\xfd")
    payload[frame + 4 : frame + 13] = b"\xe0" + struct.pack("<Q", 1 << 40)
    refused(payload, len(data))  # loops that are compiled now take more than what is asked
    assert peak_of(lambda: refused(payload, len(data))) < 4 << 20


def refused(payload, length):
    out = memoryview(bytearray(length))
    with pytest.raises(CorruptData, match="does not hold"):
        PLANES.decode(memoryview(payload), out)


@pytest.mark.parametrize("form", [Form(), Form(2, True), Form(4, True), Form(8, True)], ids=str)
@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
def test_memory_beside_the_payload_does_not_grow_with_the_chunk(loops, form):
    size = 32 << 20
    data, base = raw_of(trained(size // 4)), [raw_of(trained(size // 4, 1))]
    out = memoryview(bytearray(size))
    with only(loops):
        for codec, bases in ((PLANES, []), (DELTA, base)):
            made = memoryview(codec.encode(data, form, bases))
            codec.decode(made, out, bases)  # compiled from here on
            assert peak_of(partial(codec.encode, data, form, bases)) < size + (10 << 20)
            assert peak_of(partial(codec.decode, made, out, bases)) < 10 << 20


@given(st.binary(max_size=500))
def test_bases_change_nothing_for_codecs_that_need_none(data):
    for codec in (RAW, ZSTD, PLANES):
        assert bytes(codec.encode(memoryview(data), Form(), [memoryview(data)])) == bytes(
            codec.encode(memoryview(data))
        )
