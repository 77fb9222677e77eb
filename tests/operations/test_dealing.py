from __future__ import annotations

import os
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.records import ChunkLocation, NewPack
from ckptstore.errors import StateError
from ckptstore.format.grid import Division
from ckptstore.operations.ranks.dealing import Shard, deal, overlap, volume
from ckptstore.operations.ranks.ranks import packed, unpacked
from ckptstore.operations.ranks.reports import Ask, Opening, Report, merged

DIVISIONS = st.builds(Division, st.sampled_from([4, 16, 64, 1024]), st.booleans())


@st.composite
def split_tensors(draw):
    """A tensor cut along each dim, the boxes given to ranks at random."""
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    cuts = [sorted({0, extent, *draw(st.sets(st.integers(0, extent), max_size=3))}) for extent in shape]
    ranks = draw(st.integers(1, 5))
    held: list[list[Shard]] = [[] for _ in range(ranks)]
    for spans in product(*map(list, map(pairwise, cuts))):
        start, stop = zip(*spans, strict=True)
        held[draw(st.integers(0, ranks - 1))].append(Shard("x", 4, shape, start, stop))
    return held


@given(split_tensors(), DIVISIONS)
def test_every_chunk_has_one_owner_who_hears_of_every_piece(held, division):
    deals = deal(held, division)
    (grid,) = {shard.grid(division) for shards in held for shard in shards}
    owners: dict[int, list[int]] = {number: [] for number in range(len(grid))}
    for rank, shards in enumerate(held):
        for shard in shards:
            for number in shard.whole_chunks(grid):
                owners[number].append(rank)
        for chunk in (chunk for each in deals[rank].tensors for chunk in each.chunks if chunk.owner == rank):
            owners[chunk.number].append(rank)
            low, high = grid.box(chunk.number)
            pieces = [overlap(low, high, start, stop) for _, start, stop in chunk.boxes]
            assert sum(volume(*piece) for piece in pieces if piece) == volume(low, high)
    assert all(len(found) == 1 for found in owners.values())


@given(split_tensors(), DIVISIONS)
def test_whoever_has_a_piece_hears_of_the_owner(held, division):
    deals = deal(held, division)
    shared = [{chunk.number: chunk for each in mine.tensors for chunk in each.chunks} for mine in deals]
    for rank, mine in enumerate(shared):
        for number, chunk in mine.items():
            assert chunk.turn < deals[rank].turns
            assert shared[chunk.owner][number][:3] == chunk[:3]
            assert {other for other, _, _ in shared[chunk.owner][number].boxes} == {
                other for other, theirs in enumerate(shared) if number in theirs
            }


@given(split_tensors(), st.data())
def test_a_missing_or_a_double_shard_is_reported(held, data):
    places = [(rank, place) for rank, shards in enumerate(held) for place in range(len(shards))]
    rank, place = data.draw(st.sampled_from(places))
    shard = held[rank].pop(place)
    if any(held):
        with pytest.raises(StateError, match=r"'x'.*to nobody"):
            deal(held, Division(64, halved=True))
    with pytest.raises(StateError, match=r"'x'.*twice"):
        deal([*held, [shard, shard]], Division(64, halved=True))


def test_pieces_are_sent_in_rounds_that_fit_into_memory():
    rows = [[Shard("x", 4, (1 << 16, 8192), (0, at << 10), (1 << 16, (at + 1) << 10))] for at in range(8)]
    deals = deal(rows, Division(4 << 20, halved=True))
    assert deals[0].turns > 1
    for mine in deals:
        received = [0] * mine.turns
        for chunk in (chunk for each in mine.tensors for chunk in each.chunks if chunk.boxes):
            received[chunk.turn] += 4 << 20
        assert max(received) <= 80 << 20
    owned = [sum(bool(chunk.boxes) for each in mine.tensors for chunk in each.chunks) for mine in deals]
    assert max(owned) - min(owned) <= 1


def test_what_ranks_send_about_100_000_chunks_is_small():
    digests = [os.urandom(16) for _ in range(100)]  # of each of 1,000 ranks
    frames = [ChunkLocation(digest, "", at << 22, 4 << 20, 4 << 20, 1) for at, digest in enumerate(digests)]
    packs = [NewPack(os.urandom(16).hex(), 64 << 20, frames[at : at + 16]) for at in range(0, 100, 16)]
    paths = [f"model.layers.{at}.weight" for at in range(100)]
    chunks = {path: {7: digest} for path, digest in zip(paths, digests, strict=True)}
    report = Report(packs, chunks, {"a": b"x"}, {"b": ({"tuple": [1]}, 0)}, b"")
    shards = [Shard(path, 4, (1000, 1 << 20), (7, 0), (8, 1 << 20)) for path in paths]
    opening = Opening("store", "main", 1, shards, 1)
    ask = Ask(b"".join(digests), [4 << 20] * 100, {}, 0)
    messages = [packed(opening), packed(ask), packed(report)]
    assert sum(map(len, messages)) * 1000 < 6_000_000
    assert unpacked(messages[0]) == opening
    assert unpacked(messages[1]) == ask
    assert unpacked(messages[2]) == report


@pytest.mark.parametrize("held", [({"x": {0: b"d"}}, {}, {}), ({}, {"x": b"1"}, {}), ({}, {}, {"x": (1, 0)})])
def test_what_two_ranks_wrote_is_reported(held):
    chunks, inline, values = held
    report = Report([], chunks, inline, values, b"")
    assert merged([report]).values == held[2]
    with pytest.raises(StateError, match=r"'x'.*several ranks"):
        merged([report, report])
