import random
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import CkptStoreError, CorruptData
from ckptstore.format import packs
from ckptstore.format.codecs import RAW, ZSTD, codec_numbered, encode
from ckptstore.format.digests import checksum, digest_named

NAME = "ab" * 16
DIGEST = digest_named("xxh3_128")
LARGE = st.integers(packs.LARGE - 200, packs.LARGE + 600).map(lambda size: random.Random(size).randbytes(size))
CHUNKS = st.lists(st.binary(max_size=300) | st.integers(0, 3000).map(bytes), max_size=6, unique=True)


def build(chunks, *, base=b"", sectors=True):
    builder = packs.PackBuilder(sectors=sectors)
    for chunk in chunks:
        made = encode(memoryview(chunk))
        builder.add(DIGEST.compute(chunk), made.codec, made.payload, len(chunk), base)
    return b"".join(builder.finish()), builder


def footer(data):
    tail = data[-packs.TAIL_BYTES :]
    offset, length = packs.footer_range(tail, len(data), NAME)
    return packs.read_footer(data[offset : offset + length], tail, NAME)


def decoded(data, frame):
    raw = memoryview(bytearray(frame.raw_length))
    codec_numbered(frame.codec).decode(memoryview(data)[frame.offset : frame.offset + frame.length], raw)
    return bytes(raw)


@given(CHUNKS | st.lists(LARGE, max_size=2, unique=True), st.sampled_from([b"", b"b" * 16]), st.booleans())
def test_round_trip(chunks, base, sectors):
    data, builder = build(chunks, base=base, sectors=sectors)
    frames = footer(data)
    assert builder.size == len(data)
    assert frames == builder.frames
    assert [decoded(data, frame) for frame in frames] == chunks
    assert [frame.base for frame in frames] == [base] * len(chunks)
    assert all(frame.offset % packs.ALIGN == 0 for frame in frames)
    assert all(frame.offset % packs.SECTOR == 0 for frame in frames if sectors and frame.length >= packs.LARGE)
    assert not list(packs.problems(memoryview(data), NAME))
    assert list(packs.salvage(memoryview(data))) == frames


@pytest.mark.parametrize("before", [0, 300])
@pytest.mark.parametrize("shift", [0, 64, 448, 512, 576, 1, 72])
def test_large_payloads_lie_to_sectors_as_they_do_in_memory(before, shift):
    memory = np.random.default_rng(shift).integers(0, 256, packs.LARGE + 3 * packs.SECTOR, np.uint8)
    start = -memory.ctypes.data % packs.SECTOR + shift
    data, builder = build([bytes(before), memory[start : start + packs.LARGE].data])
    large = builder.frames[-1]
    assert large.codec == RAW.number
    assert large.offset % packs.SECTOR == (0 if shift % packs.ALIGN else shift % packs.SECTOR)
    assert not list(packs.problems(memoryview(data), NAME))
    assert list(packs.salvage(memoryview(data))) == builder.frames


def test_what_lies_before_a_sector_is_nothing_but_zeros():
    data, builder = build([b"small", random.Random(0).randbytes(packs.LARGE)])
    end = builder.frames[0].offset + len(b"small")
    header = data.index(b"CKFR", end)
    assert header - end > packs.ALIGN
    for place in range(end, header):
        damaged = bytearray(data)
        damaged[place] ^= 1
        assert list(packs.problems(memoryview(damaged), NAME))


def test_a_header_lies_less_than_a_sector_behind_the_frame_before():
    chunk = b"small"
    far = bytes(packs.SECTOR)
    data, builder = build([chunk], sectors=False)
    frame = builder.frames[0]
    moved = msgspec.structs.replace(frame, offset=frame.offset + len(far))
    body = data[: packs.ALIGN] + far + data[packs.ALIGN : frame.offset + packs.ALIGN]
    ((found, message),) = packs.problems(memoryview(with_footer(body, [moved])), NAME)
    assert found == moved
    assert "header" in message


def with_footer(body, frames):
    footer = msgspec.msgpack.encode(frames)
    where = struct.pack("<QQQ", len(body), len(footer), checksum(footer))
    return body + footer + where + struct.pack("<Q8s", checksum(where), b"ckptpend")


def test_a_footer_lists_frames_in_order_that_share_neither_bytes_nor_a_chunk():
    data, builder = build([b"one chunk", bytes(500)])
    body = data[: packs.footer_range(data[-packs.TAIL_BYTES :], len(data), NAME)[0]]
    one, two = builder.frames
    assert footer(with_footer(body, [one, two])) == [one, two]
    again, other = msgspec.structs.replace(two, digest=one.digest), msgspec.structs.replace(one, digest=b"o" * 16)
    overlapping = msgspec.structs.replace(two, offset=one.offset + one.length - 1)
    for frames in ([one, one], [one, again], [two, one], [one, other], [one, overlapping]):
        with pytest.raises(CorruptData, match=r"twice|cannot be"):
            footer(with_footer(body, frames))


def test_a_footer_lists_nothing_behind_its_frames_nor_of_more_than_they_can_stand_for():
    data, builder = build([b"one chunk"])
    end = packs.footer_range(data[-packs.TAIL_BYTES :], len(data), NAME)[0]
    (frame,) = builder.frames
    last = msgspec.structs.replace(frame, length=end - frame.offset)
    assert footer(with_footer(data[:end], [last])) == [last]
    for claimed in ({"length": last.length + 1}, {"raw_length": 2**62}):
        with pytest.raises(CorruptData, match="cannot be"):
            footer(with_footer(data[:end], [msgspec.structs.replace(frame, **claimed)]))


def test_salvage_gives_one_frame_of_a_chunk_and_none_that_claims_too_much():
    builder = packs.PackBuilder(sectors=False)
    for digest, size in ((b"a" * 16, 9), (b"a" * 16, 9), (b"b" * 16, 2**62), (b"c" * 16, 9)):
        builder.add(digest, RAW.number, b"one chunk", size)
    first, _, _, last = builder.frames
    assert list(packs.salvage(memoryview(b"".join(builder.finish())))) == [first, last]


def test_what_lies_in_a_payload_is_no_frame():
    """It shadowed the frame that it says to be."""
    chunk, other = b"one chunk" * 20, random.Random(0).randbytes(300)
    false = packs.PackBuilder(sectors=False)
    false.add(DIGEST.compute(chunk), RAW.number, other, len(other))
    inner = b"".join(false.finish())
    for chunks in ([chunk, inner], [inner, chunk]):
        builder = packs.PackBuilder(sectors=False)
        for each in chunks:
            builder.add(DIGEST.compute(each), RAW.number, each, len(each))
        data = b"".join(builder.finish())
        assert list(packs.salvage(memoryview(data)[:-1])) == builder.frames


def test_salvage_reads_a_hostile_pack_a_few_times(monkeypatch):
    total, read = 64 * 2000, []
    header = [packs._header(struct.pack("<QQ", at, 1), 0, total - 64 * (at + 1), 0, 12345, b"") for at in range(1999)]
    hostile = b"".join([*header, bytes(64)])

    def watched(part):
        read.append(len(part))
        return checksum(part)

    monkeypatch.setattr(packs, "checksum", watched)
    assert list(packs.salvage(memoryview(hostile))) == []
    assert sum(read) < 6 * total


def test_every_flipped_bit_is_found():
    data, _ = build([b"one chunk", bytes(5000), b"", b"x" * 64])
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert list(packs.problems(memoryview(damaged), NAME)), f"bit {bit} of {8 * len(data)}"


def test_every_shortened_pack_is_found():
    data, _ = build([b"one chunk", bytes(500)])
    for length in range(len(data)):
        assert list(packs.problems(memoryview(data)[:length], NAME))
    assert list(packs.problems(memoryview(data + b"\0"), NAME))


@given(st.binary(max_size=400))
def test_hostile_bytes_are_no_pack(data):
    tail = data[-packs.TAIL_BYTES :]
    with pytest.raises(CorruptData):
        packs.footer_range(tail, len(data), NAME)
    with pytest.raises(CorruptData):
        packs.read_footer(data, tail, NAME)


def test_a_pack_with_any_flipped_bit_gives_its_frames_or_an_error():
    chunks = [b"one chunk", bytes(600)]
    data, builder = build(chunks)
    start = builder.frames[0].offset
    for bit in range(8 * start, 8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            read = [decoded(damaged, frame) for frame in footer(damaged)]
        except CorruptData:
            continue
        kept = [DIGEST.compute(raw) == frame.digest for raw, frame in zip(read, builder.frames, strict=True)]
        assert [raw == chunk for raw, chunk in zip(read, chunks, strict=True)] == kept


SOUND = {"digest": b"d" * 16, "codec": 0, "offset": 128, "length": 0, "raw_length": 0, "checksum": 0, "base": b""}


@pytest.mark.parametrize(
    "change",
    [{"codec": 256}, {"codec": -1}, {"digest": b"d" * 256}, {"base": b"b" * 256}]
    + [{field: -1} for field in ("offset", "length", "raw_length", "checksum")]
    + [{"offset": 2**63, "length": 2**63}, {"raw_length": 2**64 - 1}, {"offset": "1"}],
)
def test_a_footer_of_impossible_frames_is_reported(change):
    encoded = msgspec.msgpack.encode([list((SOUND | change).values())])
    where = struct.pack("<QQQ", 128, len(encoded), checksum(encoded))
    tail = where + struct.pack("<Q8s", checksum(where), b"ckptpend")
    data = b"ckptpack".ljust(128, b"\0") + encoded + tail
    messages = [message for _, message in packs.problems(memoryview(data), NAME)]
    assert messages
    assert all(NAME in message for message in messages)


def test_a_damaged_frame_is_named():
    data, builder = build([b"one chunk", b"another"])
    damaged = bytearray(data)
    damaged[builder.frames[1].offset] ^= 1
    ((frame, message),) = packs.problems(memoryview(damaged), NAME)
    assert frame == builder.frames[1]
    assert NAME in message


@pytest.mark.parametrize("name", ["xxh3_128", "sha256", "blake3"])
def test_digests(name):
    digest = digest_named(name)
    assert len(digest.compute(b"")) == digest.size
    assert digest.compute(bytearray(b"a")) == digest.compute(memoryview(b"a")) != digest.compute(b"b")


@given(st.binary(max_size=2000), st.sampled_from([RAW, ZSTD]))
def test_codecs_give_back_what_they_took(data, codec):
    raw = memoryview(bytearray(len(data)))
    codec.decode(memoryview(codec.encode(memoryview(data))), raw)
    assert raw == data


@given(st.binary(max_size=300), st.sampled_from([RAW, ZSTD]), st.integers(0, 400))
def test_hostile_payloads_raise_or_decode_to_their_length(data, codec, length):
    raw = memoryview(bytearray(length))
    try:
        codec.decode(memoryview(data), raw)
    except CkptStoreError:
        return
    assert codec is ZSTD or data == raw


@pytest.mark.parametrize("codec", [RAW, ZSTD])
def test_a_payload_of_another_length_is_refused(codec):
    payload = memoryview(codec.encode(memoryview(b"0123456789" * 10)))
    wrong = [(payload, 99), (payload, 101), (payload, 0)] + [(payload[:cut], 100) for cut in range(len(payload))]
    for given_payload, length in wrong:
        with pytest.raises(CorruptData, match=str(length) if codec is RAW else "zstd payload"):
            codec.decode(given_payload, memoryview(bytearray(length)))


def test_an_unknown_codec_is_of_a_newer_version():
    with pytest.raises(CkptStoreError, match=r"codec 99.*upgrade"):
        codec_numbered(99)


@pytest.mark.parametrize("name", ["xxh3_128", "sha256", "blake3"])
@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "keyed"])
def test_a_digest_that_holds_the_checksum_holds_the_right_one(name, key):
    digest = digest_named(name, key)
    for size in (*range(400), 1 << 20):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        found = digest.checksum(digest.compute(data), size)
        assert found in {None, checksum(data)}
        assert (found is not None) == (name == "xxh3_128" and key is None and size > 240)
