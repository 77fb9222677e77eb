"""Which chunks that a step made are computed again, and how much of a commit may rest on others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore.deriving import Derivation, derivations, turns
from ckptstore.chunkstore.encoding import Made, Piece
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.reliance import FEW, HALF, MANY, MOST, NONE, ROOM, SOME, Reliance
from ckptstore.format.codecs import RAW

SIZE = 1 << 16


def piece(**fields):
    return Piece(memoryview(bytes(SIZE)), copied=False, **fields)


def derivation(number, below, work, rests=False):
    digests = tuple(bytes([number, place]) * 8 for place in range(below))
    places = [ChunkLocation(digest, "pack", 0, SIZE, SIZE, RAW.number) for digest in digests]
    newer = {bytes([100 + number]): memoryview(b"")}
    return Derivation(Made(RAW, digests, 3 - below, work), newer, places, rests)


def relied(size):
    reliance = Reliance()
    reliance.expect(size)
    return reliance


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.7, 1.0]), st.booleans()), max_size=12))
def test_as_many_are_computed_as_fit_the_lightest_first(found):
    known = {bytes([number]): derivation(number, *each) for number, each in enumerate(found)}
    room = ROOM * SIZE * 3 * len(known)
    chosen = turns(known, relied(SIZE * 3 * len(known)))
    taken = sum(each.added for each in chosen.now.values())
    assert taken <= room
    assert not any(each.rests for each in chosen.now.values())
    others = [each.added for digest, each in known.items() if digest not in chosen.now and not each.rests]
    assert all(taken + added > room * (1 - 1e-9) for added in others)
    assert max((each.added for each in chosen.now.values()), default=0) <= min(others, default=float("inf"))
    newer = {name for each in known.values() for name in each.newer}
    assert chosen.waiting == (known.keys() | newer) - chosen.now.keys()


def test_the_older_chunk_is_read_in_place_of_the_new_one():
    assert derivation(0, 1, 1.0).added == SIZE
    assert derivation(0, 2, 0.5).added == 1.5 * SIZE


@pytest.mark.parametrize(
    ("bases", "length", "rests"),
    [(0, 0.8, [False]), (1, 0.5, [False]), (1, 0.3, []), (3, 0.01, [True])],
    ids=["whole", "large difference", "small difference", "computed itself"],
)
def test_what_chunks_are_computed_from(bases, length, rests):
    digests = [bytes([number]) * 16 for number in range(4)]
    pinned = {digest: ChunkLocation(digest, "pack", 0, SIZE, SIZE, RAW.number) for digest in digests[1:]}
    base = b"".join(digests[1 : bases + 1])
    older = ChunkLocation(digests[0], "pack", 0, int(SIZE * length), SIZE, RAW.number, base)
    fresh = {bytes([number]) * 16: piece(goes_on=True) for number in (10, 11)}
    fresh[b"new"] = piece(made=lambda: Made(RAW, (digests[0],), 2, 1.0), before=tuple(fresh))
    found = derivations(fresh, lambda _: pinned | {digests[0]: older}, Way(sealed=False, copies=0))
    assert [each.rests for each in found.values()] == rests


@pytest.mark.parametrize(("size", "computed"), [(1 << 14, True), ((1 << 14) - 4, False)])
def test_what_is_small_is_not_computed(size, computed):
    older = ChunkLocation(bytes(16), "pack", 0, size, size, RAW.number)
    made = Made(RAW, (older.digest,), 0, 1.0)
    fresh = {b"new": Piece(memoryview(bytes(size)), copied=False, made=lambda: made)}
    assert bool(derivations(fresh, lambda _: {older.digest: older}, Way(sealed=False, copies=0))) == computed


def test_what_several_threads_ask_at_once_is_bounded():
    reliance = relied(8 * SIZE)
    asked = [reliance.ask(SIZE) for _ in range(8)]
    assert asked[0] == FEW
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] == NONE
    for _ in range(8):
        reliance.record(SIZE, 1.6, 0.0, SIZE)
    assert reliance.share == FEW


@pytest.mark.parametrize("size", [SIZE - 4, SIZE + 4])
def test_nothing_is_computed_from_chunks_of_another_size(size):
    older = ChunkLocation(bytes(16), "pack", 0, size, size, RAW.number)
    fresh = {b"new": piece(made=lambda: Made(RAW, (older.digest,), 0, 1.0))}
    assert not derivations(fresh, lambda _: {older.digest: older}, Way(sealed=False, copies=0))


def test_what_adds_nothing_after_all_leaves_its_room_to_others():
    reliance = relied(100)
    assert reliance.bears(40)
    assert not reliance.bears(10)
    reliance.release(40)
    assert reliance.bears(10)


def test_where_much_rests_on_others_little_does_that_saves_little():
    shares = []
    for added in (0, SOME + 0.001, ROOM + 0.001, MOST + 0.001):
        reliance = relied(100)
        reliance.record(100, 1, added)
        shares.append(reliance.share)
    assert shares == [FEW, MANY, HALF, NONE]
    reliance.expect(1000)
    assert reliance.share == FEW


@pytest.mark.parametrize(("others", "share"), [(2, FEW), (0.5, MANY)])
def test_a_difference_is_compared_with_what_reading_all_takes(others, share):
    reliance = relied(100)
    reliance.record(50, 2, 0.5)
    reliance.record(50, others, 0)
    assert reliance.share == share


def test_what_comes_may_take_less_to_read_than_what_was_there_first():
    reliance = relied(100)
    reliance.record(10, 3, 3)
    assert reliance.share == MANY
    reliance.record(90, 3, 0)
    assert reliance.share == FEW


def test_nothing_is_computed_where_differences_take_the_room():
    reliance = relied(100)
    reliance.record(100, 2, 0.6)
    assert not reliance.bears(20)
    assert reliance.bears(10)
    assert not reliance.bears(10)
