"""How new chunks are encoded."""

import numpy as np
import pytest

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.encoding import Encoder, Piece
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.pace import Pace
from ckptstore.chunkstore.reliance import MOST
from ckptstore.format.codecs import DELTA, Form
from ckptstore.format.codecs.base import PLANES

SIZE = 1 << 18
FLOATS = Form(4, floating=True)
BEFORE = np.random.default_rng(0).normal(0, 0.02, SIZE // 4).astype("<f4")
AFTER = BEFORE * np.float32(1.001)
OLD = ChunkLocation(b"old", "pack", 0, SIZE, SIZE, PLANES)


def encoder_of(raw):
    return Encoder("best", Pace(far=False), Way(sealed=False, copies=0), set, raw)


def codec_of(encoder):
    """Of a chunk that hardly differs from an older one."""
    piece = Piece(AFTER.data.cast("B"), copied=False, form=FLOATS)
    (chunk,) = encoder.encode([(b"new", piece)], "best", {b"new": OLD}, frozenset())
    return chunk.codec


@pytest.mark.parametrize(("added", "codec", "reads"), [(MOST - 0.01, DELTA, 1), (MOST + 0.01, PLANES, 0)])
def test_older_chunks_are_read_only_while_new_ones_may_rest_on_them(added, codec, reads):
    read = []

    def raw(digests):
        read.extend(digests)
        return [BEFORE.data.cast("B") for _ in digests]

    encoder = encoder_of(raw)
    encoder.reliance.expect(10 * SIZE)
    encoder.reliance.record(10 * SIZE, 1, added)
    assert (codec_of(encoder), len(read)) == (codec, reads)


def test_a_difference_leaves_less_room_to_the_next_one():
    encoder = encoder_of(lambda digests: [BEFORE.data.cast("B") for _ in digests])
    encoder.reliance.expect(SIZE)
    assert [codec_of(encoder), codec_of(encoder)] == [DELTA, PLANES]
