"""The compiled loops do what those in numpy do, to the byte, and so do those that are not compiled yet."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ckptstore.errors import CorruptData
from ckptstore.format.codecs.adam_arithmetic import Kind, Number, Prediction, Rounding
from ckptstore.format.codecs.binding import Encoder
from ckptstore.format.codecs.compiled import CompiledLoops
from ckptstore.format.codecs.compiled.calls import Call, at, into
from ckptstore.format.codecs.compiled.machine import loaded, machine_code
from ckptstore.format.codecs.compiled.source.compiling import array_at, llvm_of
from ckptstore.format.codecs.compiled.source.frames import coding
from ckptstore.format.codecs.entropy import Coders, PlaneCoder, PlaneDecoder
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.squeezing import NARROW, WHOLE, best_offset, counts_of, per_byte, symbols_of
from ckptstore.format.codecs.tools import Tools
from ckptstore.format.codecs.words import BLOCK_WORDS, word_type

CODERS = Coders(Encoder(searching=False), Encoder(searching=True))
ALL = [
    Loops(Tools().array, CODERS),
    CompiledLoops(Tools().array, CODERS),
    CompiledLoops(Tools().array, CODERS, get=lambda make, *arguments: None),
]
SIZES = st.integers(0, 300) | st.just(BLOCK_WORDS)
SEEDS = st.integers(0, 2**32 - 1)


def noise(count, width, seed):
    return np.random.default_rng(seed).integers(0, 1 << 8 * width, count, word_type(width), endpoint=False)


def unaligned(array):
    """The same numbers at an odd address, read-only, as in a payload."""
    shifted = b"x" + array.tobytes()
    return np.frombuffer(shifted, array.dtype, offset=1)


@given(SIZES, SEEDS, st.sampled_from([2, 4, 8]), st.booleans())
def test_words_are_halved_and_joined(count, seed, width, balanced):
    words = unaligned(noise(count, width, seed))
    for loops in ALL:
        high, low = (np.empty(count, word_type(width // 2)) for _ in range(2))
        loops.halve(words, high, low, balanced=balanced)
        assert np.array_equal(low, words.astype(low.dtype))
        bias = 1 << 4 * width - 1 if balanced else 0
        assert np.array_equal(high, ((words + words.dtype.type(bias)) >> 4 * width).astype(high.dtype))
        joined = np.empty(count, words.dtype)
        loops.join(unaligned(high), unaligned(low), joined, balanced=balanced)
        assert np.array_equal(joined, words)
        loops.join(unaligned(high), unaligned(low), joined, balanced=balanced, onto=True)
        assert np.array_equal(joined, words + words)


@given(SIZES, SEEDS, st.integers(1, 7), st.integers(0, 255).map(lambda center: center << 7))
def test_fields_are_cut_and_joined(count, seed, split, center):
    words = unaligned(noise(count, 2, seed))
    cut = []
    for loops in ALL:
        byte, others, joined = np.empty(count, np.uint8), np.empty(count, np.uint8), np.empty(count, np.uint16)
        loops.cut_fields(words, split, center, byte, others)
        loops.join_fields(unaligned(byte), unaligned(others), split, center, joined)
        assert np.array_equal(joined, words)
        cut.append((byte, others))
    for one, *same in zip(*cut, strict=True):
        assert all(np.array_equal(one, other) for other in same)


@st.composite
def planes(draw):
    """Mostly near one another, with some far ones: few and far between, many, or all."""
    count, share = draw(SIZES), draw(st.sampled_from([0, 1e-5, 1e-3, 0.05, 0.5, 1]))
    rng = np.random.default_rng(draw(SEEDS))
    plane = rng.integers(100, 116, count, np.uint8)
    far = rng.random(count) < share
    far[240::240] |= draw(st.booleans())
    plane[far] = rng.integers(0, 256, int(far.sum()), np.uint8)
    return plane


@st.composite
def uneven(draw):
    """Of few bytes or many, some of them commoner than others, around 0 too; three fifths may be one and its next."""
    count, kinds, first = 5 * draw(st.integers(1, 400)), draw(st.integers(1, 256)), draw(st.integers(0, 255))
    rng, steps = np.random.default_rng(draw(SEEDS)), draw(st.sampled_from([1, 3, 20]))
    found = first + steps * np.minimum(rng.geometric(draw(st.sampled_from([0.02, 0.3, 0.9])), count), kinds)
    if draw(st.booleans()):
        found[: count * 3 // 5] = first
        found[count * 3 // 5 :] = first + 100 + rng.integers(0, 2, count - count * 3 // 5)
        rng.shuffle(found)
    return found.astype(np.uint8)


@example(np.array([254, 255, *range(14), *[0] * 84] * 10, np.uint8))
@given(planes() | uneven() | st.builds(noise, SIZES, st.just(1), SEEDS))
def test_planes_are_weighed(plane):
    """As it is, and as what it is squeezed to, in the number of bytes that coding each part takes."""
    for loops, coder in product(ALL, CODERS):
        weighed = loops.weigh(unaligned(plane), coder)
        assert weighed == ALL[0].weigh(plane, coder)
        for weight in weighed:
            parts = [plane]
            if weight.bits != WHOLE:
                common = np.empty(symbols_of(len(plane), weight.bits), np.uint8)
                parts = [common, *ALL[0].squeeze(plane, weight.bits, weight.offset, common)]
                assert weight.gaps == len(parts[1])
            assert weight.size == sum(len(coder.encode(part)) for part in parts)
            found = [part for part in parts if len(coder.encode(part)) not in {1, len(part)}]
            assert weight.coded == sum(map(len, found))
            assert weight.symbols == sum(len(set(part.tolist())) for part in found)
        assert [weight.bits for weight in weighed] == [WHOLE, *NARROW][: len(weighed)]


@given(planes(), st.sampled_from([0, 100, 108, 115]), st.sampled_from(NARROW))
def test_best_offset_is_where_the_most_neighbours_are(plane, shift, bits):
    plane = plane - np.uint8(shift)  # 0 and 255 are neighbours too
    near = [int((plane - np.uint8(offset) < 1 << bits).sum()) for offset in range(256)]
    offset, share = best_offset(counts_of(plane), bits)
    assert near[offset] == max(near)
    assert share == max(near) / max(len(plane), 1)


@given(planes(), st.sampled_from(NARROW), st.sampled_from([0, 100, 255]))
def test_planes_are_squeezed_and_spread(plane, bits, offset):
    found = []
    for loops in ALL:
        common = np.empty(symbols_of(len(plane), bits), np.uint8)
        gaps, others = loops.squeeze(unaligned(plane), bits, offset, common)
        found.append([common.copy(), gaps.copy(), others.copy()])
        spread = np.empty(max(len(plane), len(common) * per_byte(bits)), np.uint8)
        loops.spread(unaligned(common), bits, offset, unaligned(gaps), unaligned(others), spread, len(plane))
        assert np.array_equal(spread[: len(plane)], plane)
    for one, *same in zip(*found, strict=True):
        assert all(np.array_equal(one, other) for other in same)


@pytest.mark.parametrize("loops", ALL, ids=["numpy", "numba", "numba, not yet"])
@pytest.mark.parametrize("gaps", [[10], [5, 5], [255], [249, 249], [0, 9, 240]])
@pytest.mark.parametrize("bits", NARROW)
def test_gaps_that_lead_out_of_a_plane_are_damage(loops, bits, gaps):
    common, others, padded = (np.zeros(size, np.uint8) for size in (symbols_of(10, bits), len(gaps), 12))
    with pytest.raises(CorruptData, match="10 bytes"):
        loops.spread(common, bits, 0, np.array(gaps, np.uint8), others, padded, 10)


@given(SIZES, SEEDS, st.sampled_from(Kind), st.sampled_from(Number), st.sampled_from(Rounding), st.data())
def test_adams_arithmetic_gives_the_same_bits(count, seed, kind, number, rounding, data):
    usual = {Kind.WEIGHT: (0.99999, -1e-3, 0.7, 1e-8), Kind.SECOND: (0.9, 0.999)}[kind]
    most = {Kind.WEIGHT: 2.0**50, Kind.SECOND: 1 - 2.0**-26}[kind]
    coefficients = data.draw(st.just(usual) | st.tuples(*[st.floats(-most, most)] * len(usual)))
    prediction = Prediction(kind, number, rounding, coefficients)
    assume(prediction.usable)
    bases = [unaligned(noise(count, number.width, seed + place)) for place in range(3)]
    near_one = word_type(number.width).type(0x3F80 << 8 * (number.width - 2))
    if data.draw(st.booleans()):  # as trained numbers are; otherwise any bits, among them no numbers
        bases = [unaligned((base >> base.dtype.type(4)) ^ near_one) for base in bases]
    for loops in ALL:
        words = np.empty(count, word_type(number.width))
        loops.predict(prediction, bases, words)
        assert np.array_equal(words, prediction.words(bases))


def test_what_zstd_refuses_is_reported_to_compiled_loops():
    """As without memory: here there is no room for a frame, of which the loops' own memory has enough."""
    code, call = coding(), Call("coded", "nanan")

    def entry(zstd, part, size, out, room):
        return code(zstd, array_at(part, size, np.uint8), array_at(out, room, np.uint8))

    coded = loaded(machine_code(*llvm_of(entry, call)), call)
    encoder, out, part = Encoder(searching=False), np.empty(1000, np.uint8), np.tile(np.arange(16, dtype=np.uint8), 100)
    assert 1 < coded(encoder.address, at(part), len(part), into(out), len(out)) < 100
    assert coded(encoder.address, at(part), len(part), into(out), 5) < 0


@given(planes() | uneven() | st.builds(noise, SIZES, st.just(1), SEEDS))
def test_frames_are_decoded(plane):
    for coder in (PlaneCoder(), *CODERS):
        frame = coder.frame(unaligned(plane))
        assert np.array_equal(PlaneDecoder().decode(frame, len(plane)), plane)


@pytest.mark.parametrize("zeros", [0.5, 0.6])
def test_short_runs_of_zeros_take_what_huffman_makes_of_them(zeros):
    """So many bits a zero and its like; those runs that zstd finds take more."""
    plane = (np.random.default_rng(0).geometric(zeros, BLOCK_WORDS) - 1).astype(np.uint8)
    assert len(CODERS.usual.frame(plane)) < 1.05 / zeros / 8 * len(plane) < len(PlaneCoder().frame(plane))


def test_zeros_with_few_others_take_next_to_nothing():
    plane = np.zeros(BLOCK_WORDS, np.uint8)
    plane[::5000] = 1
    assert len(CODERS.usual.frame(plane)) < 400


LOOP = "define i64 @loop() {\n  ret i64 7\n}\n"


@pytest.mark.parametrize(
    "unknown",
    [
        "declare float @tanhf(float)",
        "declare i64 @numba.other(i64)",
        'declare void @"with blanks"()',
        "@elsewhere = external global ptr",
        "@elsewhere = external local_unnamed_addr global i8, align 1",
    ],
)
def test_what_is_not_known_would_end_the_process_and_is_refused(unknown):
    with pytest.raises(ValueError, match="not known"):
        machine_code(f"{unknown}\n{LOOP}", "loop")


def test_a_loop_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="makes no function another"):
        machine_code(LOOP, "another")


def test_machine_code_is_called():
    known = ["declare float @sqrtf(float)", "declare void @numba_unpickle(ptr, i32)", "@PyExc_X = external global i8"]
    assert loaded(machine_code("\n".join([*known, LOOP]), "loop"), Call("loop", ""))() == 7


def test_what_lies_in_pieces_is_not_handed_to_compiled_loops():
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        at(np.arange(4)[::2])


def test_what_may_only_be_read_is_not_filled():
    with pytest.raises(ValueError, match="only be read"):
        into(np.frombuffer(b"1234", np.uint8))
