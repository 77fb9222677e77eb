"""Of all places where chunks lie, those are chosen from which they can be decoded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.places import Places
from ckptstore.catalog.records import ChunkLocation

DIGESTS = [bytes([number]) * 4 for number in range(8)]
SETS = st.sets(st.sampled_from(DIGESTS))
LOCATIONS = st.builds(
    lambda digest, pack, bases: ChunkLocation(digest, pack, 64, 10, 20, 1, b"".join(sorted(bases))),
    st.sampled_from(DIGESTS),
    st.sampled_from("abcd"),
    st.sets(st.sampled_from(DIGESTS), max_size=2),
)
GRAPHS = st.lists(st.tuples(st.integers(0, 5), LOCATIONS), max_size=20)


def decodable(graph, within):
    """Every chunk that can be decoded, resting on nothing but what lies within."""
    found: set[bytes] = set()
    for _ in DIGESTS:
        found |= {one.digest for _, one in graph if all(base in found & within for base in one.bases)}
    return found


@given(GRAPHS, SETS, st.none() | SETS)
def test_what_is_chosen_can_be_decoded(graph, digests, within):
    places = Places()
    for rank, location in graph:
        places.add(rank, location)
    chosen = places.closure(digests, within)
    assert digests & chosen.keys() == digests & decodable(graph, set(DIGESTS) if within is None else within)
    picked = [(0, location) for location in chosen.values()]
    assert decodable(picked, set(DIGESTS)) == chosen.keys()
    assert all(location in [one for _, one in graph] for location in chosen.values())
    needed = {base for location in chosen.values() for base in location.bases}
    assert chosen.keys() <= digests | needed
    assert within is None or needed <= within


@given(GRAPHS, SETS)
def test_whole_copies_come_first_and_then_the_lowest_rank(graph, digests):
    places = Places()
    for rank, location in graph:
        places.add(rank, location)
    for digest, location in places.closure(digests).items():
        whole = [rank for rank, one in graph if one.digest == digest and not one.base]
        ranks = [rank for rank, one in graph if one == location]
        assert bool(location.base) != bool(whole)
        assert not whole or min(whole) in ranks
