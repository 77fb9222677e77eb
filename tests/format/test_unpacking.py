"""However words were cut and coded, they come back, by numpy and by numba; and both report damage."""

import math
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.chunkstore.encoding import unwritten
from ckptstore.chunkstore.needs import decoding_bytes
from ckptstore.errors import CorruptData
from ckptstore.format.codecs import Form, codec_numbered, encode, tools
from ckptstore.format.codecs.compiled import CompiledLoops
from ckptstore.format.codecs.delta import Delta
from ckptstore.format.codecs.layout import LENGTH, WHOLE_BYTES, Cut, Plan, Way
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.packing import pack
from ckptstore.format.codecs.pool import Pool
from ckptstore.format.codecs.squeezing import NARROW, WHOLE
from ckptstore.format.codecs.unpacking import Unpacking
from ckptstore.format.codecs.words import BLOCK_WORDS, WIDTHS, word_type
from ckptstore.testing.memory import peak_of

COUNTS = st.integers(1, 300) | st.sampled_from([BLOCK_WORDS - 1, BLOCK_WORDS + 3, 20 * BLOCK_WORDS + 5])
SEEDS = st.integers(0, 2**32 - 1)


@contextmanager
def only(loops):
    """Let codecs use these loops alone."""

    def make():
        used = tools.Tools()
        used.loops = loops(used.array, used.coders)
        return used

    with patch.object(tools, "_POOL", Pool(make)), patch.object(tools, "_KEPT_AFTER", math.inf):
        yield


@st.composite
def cuts(draw):
    """And whether the words are differences."""
    width = draw(st.sampled_from(WIDTHS))
    if width == 1:
        return Cut(1), draw(st.booleans())
    kept = width > 2 and draw(st.booleans())
    if draw(st.booleans()):
        return Cut(width, signed=True, kept=kept), True
    split, center = draw(st.sampled_from([(WHOLE_BYTES, 0), (7, 0), (3, 107), (5, 9)]))
    return Cut(width, split, center, kept=kept), draw(st.integers(0, 9)) == 0


@st.composite
def plans(draw):
    """And whether the words are differences."""
    cut, differences = draw(cuts())
    bits = st.sampled_from([WHOLE, *NARROW])
    ways = [Way(coded=True, bits=each, offset=draw(st.sampled_from([0, 60, 255])) * (each < WHOLE)) for each in
            draw(st.lists(bits, min_size=len(cut.sizes), max_size=len(cut.sizes)))]  # fmt: skip
    if cut.kept:
        ways[-1] = Way(coded=False)
    return Plan(cut, tuple(ways), 1, searched=draw(st.booleans())), differences


def words_like(count, width, seed):
    """Mostly near one value, or all of it, or noise."""
    rng, kind = np.random.default_rng(seed), word_type(width)
    noise = rng.integers(0, 1 << 8 * width, count, kind, endpoint=False)
    near = rng.integers(61, 61 + (1 << rng.integers(0, 8 * width - 6)), count, kind, endpoint=False)
    return np.where(rng.random(count) < rng.choice([0, 0.001, 0.1]), noise, near)


def unpacked(loops, payload, before, *, onto):
    """None where damage is reported."""
    out = memoryview(bytearray(before))
    with only(loops):
        try:
            Unpacking(memoryview(payload), out).run(onto=onto)
        except CorruptData:
            return None
    return bytes(out)


@given(plans(), COUNTS, SEEDS, st.binary(max_size=7), st.sampled_from([1, 0.5, 0.001]))
def test_all_loops_pack_the_same_bytes_however_little_was_expected(planned, count, seed, tail, share):
    plan, words = planned[0], words_like(count, planned[0].cut.width, seed)
    expected, uncoded = replace(plan, share=share), [replace(way, coded=way.bits < WHOLE) for way in plan.ways]
    for each in (expected, replace(expected, ways=tuple(uncoded))):
        made = []
        for loops in (Loops, CompiledLoops):
            with only(loops):
                made.append(bytes(pack(each, count, lambda where, _: words[where], memoryview(tail))))
        assert made[0] == made[1]


@given(plans(), COUNTS, SEEDS, st.binary(max_size=7))
def test_words_come_back(planned, count, seed, tail):
    plan, differences = planned
    tail = tail[: plan.cut.width - 1]
    words, below = words_like(count, plan.cut.width, seed), words_like(count, plan.cut.width, seed + 1)
    payload = pack(plan, count, lambda where, _: words[where], memoryview(tail))
    expected = (words + below if differences else words).tobytes() + tail
    for loops in (Loops, CompiledLoops):
        assert unpacked(loops, payload, below.tobytes() + bytes(len(tail)), onto=differences) == expected


@given(plans(), st.integers(1, 5000), SEEDS, st.data())
def test_damage_is_the_same_to_both(planned, count, seed, data):
    plan, differences = planned
    words = words_like(count, plan.cut.width, seed)
    payload = bytearray(pack(plan, count, lambda where, _: words[where], memoryview(b"")))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    below = words[::-1].tobytes()
    found = [unpacked(loops, payload, below, onto=differences) for loops in (Loops, CompiledLoops)]
    assert found[0] == found[1]


def squeezed(gaps, others):
    """A block of ten bytes, squeezed to nothing."""
    gap_part = (len(gaps).to_bytes(LENGTH.itemsize, "little") if gaps else b"") + bytes(gaps)
    lengths = np.array([0, len(gap_part), len(others)], LENGTH).tobytes()
    return bytes([1, WHOLE_BYTES, 0, 0, 0, 7]) + lengths + gap_part + bytes(others)


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
def test_others_lie_where_gaps_say(loops):
    found = unpacked(loops, squeezed([2, 3, 4], [1, 2, 3]), bytes(10), onto=False)
    assert found == bytes([7, 7, 1, 7, 7, 2, 7, 7, 7, 3])


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
@pytest.mark.parametrize(
    ("gaps", "others"),
    [([10], [1]), ([5, 5], [1, 2]), ([255], [1]), ([240], [1]), ([1], [1, 2]), ([], [1]), ([1] * 11, [1] * 11),
     ([0] * 11, [1] * 11)],
)  # fmt: skip
def test_gaps_that_cannot_be_are_damage(loops, gaps, others):
    assert unpacked(loops, squeezed(gaps, others), bytes(10), onto=False) is None


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
def test_a_part_that_holds_another_size_than_it_stands_for_is_damage(loops):
    words = np.random.default_rng(0).integers(0, 9, 1000, np.uint8)
    plan = Plan(Cut(1), (Way(coded=True),), 1)
    payload = bytes(pack(plan, 1000, lambda where, _: words[where], memoryview(b"")))
    assert unpacked(loops, payload, bytes(1000), onto=False) == words.tobytes()
    for size in (999, 1001, 2000):
        assert unpacked(loops, payload, bytes(size), onto=False) is None


def test_no_payload_makes_much_be_decoded_at_once():
    """Everything is stored as an other, so that there is two and a half times as much to decode, of next to nothing."""
    words = np.full(20 * BLOCK_WORDS, 2**64 - 1, np.uint64)
    plan = Plan(Cut(8), tuple(Way(coded=True, bits=4) for _ in range(8)), 1)

    def alternating(where, _):
        words[where][::2] ^= np.uint64(0x0F0F0F0F0F0F0F0F)  # or a part would be stored as one byte
        return words[where]

    payload = memoryview(pack(plan, len(words), alternating, memoryview(b"")))
    for loops in (Loops, CompiledLoops):
        out = memoryview(bytearray(words.nbytes))
        with only(loops):
            assert peak_of(Unpacking(payload, out).run) < 10 << 20
        assert out == words.tobytes()


class Refusing(Loops):
    def unpack(self, plan, source, words, *, onto):
        words += 1
        return False


def test_what_a_loop_refuses_is_damage_whatever_numpy_makes_of_it():
    words = words_like(1000, 4, 0)
    plan = Plan(Cut(4, signed=True), (Way(coded=True),) * 4, 1)
    payload = pack(plan, 1000, lambda where, _: words[where], memoryview(b""))
    for loops, expected in ((Loops, words.tobytes()), (Refusing, None)):
        assert unpacked(loops, payload, bytes(4000), onto=True) == expected


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
@pytest.mark.parametrize(("size", "stated"), [(999, True), (1001, True), (999, False), (1000, False), (1001, False)])
def test_a_frame_that_does_not_state_its_size_rightly_is_damage(loops, size, stated):
    words = np.random.default_rng(0).integers(0, 9, size, np.uint8)
    frame = zstandard.ZstdCompressor(write_content_size=stated).compress(words.tobytes())
    payload = bytes([1, WHOLE_BYTES, 0, 0, WHOLE, 0]) + np.array([len(frame)], LENGTH).tobytes() + frame
    assert unpacked(loops, payload, bytes(1000), onto=False) is None


@given(plans(), st.integers(1, 600), SEEDS)
def test_no_loop_packs_more_than_there_is_room_for(planned, count, seed):
    plan, words = planned[0], words_like(count, planned[0].cut.width, seed)
    loops, lengths = CompiledLoops(tools.Tools().array, tools.fastest_coders()), np.zeros(plan.parts, LENGTH)
    out = np.full(4 * words.nbytes + 5000, 0xA5, np.uint8)
    end = loops.pack(plan, words, out, 7, lengths)
    for room in range(max(end - 9, 7), end):
        out[room:] = 0xA5
        assert loops.pack(plan, words, out[:room], 7, lengths) == 0
        assert (out[room:] == 0xA5).all()
    assert loops.pack(plan, words, out[:end], 7, lengths) == end


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
@pytest.mark.parametrize(
    "behind",
    [b"\x50\x2a\x4d\x18\x03\0\0\0abc", zstandard.ZstdCompressor().compress(b""), b"x"],
    ids=["skippable", "empty", "x"],
)
def test_what_lies_behind_a_frame_is_damage(loops, behind):
    words = np.random.default_rng(0).integers(0, 9, 1000, np.uint8)
    for more in (b"", behind):
        frame = zstandard.ZstdCompressor().compress(words.tobytes()) + more
        payload = bytes([1, WHOLE_BYTES, 0, 0, WHOLE, 0]) + np.array([len(frame)], LENGTH).tobytes() + frame
        assert unpacked(loops, payload, bytes(1000), onto=False) == (None if more else words.tobytes())


COUNTERS = np.random.default_rng(0).poisson(3, 1 << 19).astype("<i8")
COUNTERS[::100] += 1 << 40


@pytest.mark.parametrize("loops", [Loops, CompiledLoops])
@pytest.mark.parametrize("kind", ["<i8", "<f8", "<i4", "<f4", "<i2"])
@pytest.mark.parametrize("related", [False, True])
def test_decoding_holds_no_more_than_readers_reckon_with(loops, kind, related):
    before = (COUNTERS * (0.7 if "f" in kind else 1)).astype(kind)
    raw, base = (memoryview(array.tobytes()) for array in (before + (COUNTERS % 3 == 0).astype(kind), before))
    made = encode(raw, Form(before.itemsize, "f" in kind), base if related else None, "best")
    out = memoryview(bytearray(base))
    decode = Delta().decode_onto if made.uses_base else codec_numbered(made.codec).decode
    with only(loops):
        decode(memoryview(made.payload), out)  # loops are compiled
    out[:] = base
    with only(loops):
        peak = peak_of(lambda: decode(memoryview(made.payload), out))
    assert peak <= decoding_bytes([unwritten(b"", len(raw), len(raw))])
    assert out == raw
