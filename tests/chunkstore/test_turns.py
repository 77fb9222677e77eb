"""Which chunks that a step made are computed again, and how much of a commit may rest on others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.deriving import Derivation, derivations, turns
from ckptstore.chunkstore.encoding import Made, Piece
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.reliance import FEW, HALF, MANY, ROOM, Reliance
from ckptstore.format.codecs import RAW

SIZE = 1 << 16


def piece(**told):
    return Piece(memoryview(bytes(SIZE)), copied=False, **told)


def derivation(number, below, work):
    digests = tuple(bytes([number, place]) * 8 for place in range(below))
    places = [ChunkLocation(digest, "pack", 0, SIZE, SIZE, RAW.number) for digest in digests]
    return Derivation(Made(RAW, digests, 3 - below, work), {}, places)


def relied(size):
    reliance = Reliance()
    reliance.expect(size)
    return reliance


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.7, 1.0])), max_size=12), st.integers(0, 12))
def test_as_many_are_computed_as_fit_the_lightest_first(found, others):
    known = {bytes([number]): derivation(number, *each) for number, each in enumerate(found)}
    fresh = {digest: piece(made=lambda: None) for digest in known}
    fresh |= {bytes([100 + number]): piece(goes_on=True) for number in range(others)}
    room = ROOM * SIZE * len(fresh)
    chosen = turns(fresh, known, relied(SIZE * len(fresh)))
    taken = sum(each.added for each in chosen.now.values())
    assert taken <= room
    waiting = [known[digest].added for digest in known.keys() - chosen.now.keys()]
    assert all(taken + added > room for added in waiting)
    assert max((each.added for each in chosen.now.values()), default=0) <= min(waiting, default=float("inf"))
    assert chosen.waiting == (fresh.keys() - chosen.now.keys() if known else set())


def test_the_older_chunk_is_read_in_place_of_the_new_one():
    assert derivation(0, 1, 1.0).added == SIZE
    assert derivation(0, 2, 0.5).added == 1.5 * SIZE


@pytest.mark.parametrize(
    ("bases", "length", "computed"),
    [(0, 0.8, True), (1, 0.5, True), (1, 0.3, False), (3, 0.01, False)],
    ids=["whole", "large difference", "small difference", "computed itself"],
)
def test_what_chunks_are_computed_from(bases, length, computed):
    digests = [bytes([number]) * 16 for number in range(4)]
    pinned = {digest: ChunkLocation(digest, "pack", 0, SIZE, SIZE, RAW.number) for digest in digests[1:]}
    base = b"".join(digests[1 : bases + 1])
    older = ChunkLocation(digests[0], "pack", 0, int(SIZE * length), SIZE, RAW.number, base)
    fresh = {bytes([number]) * 16: piece(goes_on=True) for number in (10, 11)}
    fresh[b"new"] = piece(made=lambda: Made(RAW, (digests[0],), 2, 1.0), before=tuple(fresh))
    found = derivations(fresh, lambda _: pinned | {digests[0]: older}, Way(sealed=False, copies=0))
    assert found.keys() == ({b"new"} if computed else set())


def test_what_is_small_is_not_computed():
    made = Made(RAW, (), 0, 1.0)
    fresh = {b"new": Piece(memoryview(bytes(1 << 13)), copied=False, made=lambda: made)}
    assert not derivations(fresh, lambda _: {}, Way(sealed=False, copies=0))


def test_what_adds_nothing_after_all_leaves_its_room_to_others():
    reliance = relied(100)
    assert reliance.bears(40)
    assert not reliance.bears(10)
    reliance.add(-40)
    assert reliance.bears(10)


def test_where_much_rests_on_others_little_does_that_saves_little():
    reliance = relied(100)
    reliance.add(45)
    assert reliance.share == FEW
    reliance.add(15)
    assert reliance.share == MANY
    reliance.add(1)
    assert reliance.share == HALF
    reliance.expect(100)
    assert reliance.share == FEW
