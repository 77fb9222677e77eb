"""Of all places where chunks lie, those are chosen from which they can be decoded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.catalog.places import DEEPEST, Places
from ckptstore.catalog.records import ChunkLocation
from ckptstore.testing.catalog_making import digest, make, new_commit, new_pack

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
    for location in places.closure(digests).values():
        whole = [rank for rank, one in graph if one.digest == location.digest and not one.base]
        ranks = [rank for rank, one in graph if one == location]
        assert bool(location.base) != bool(whole)
        assert not whole or min(whole) in ranks


@pytest.fixture
def looks(monkeypatch):
    """One for each time that chunks were asked for what they rest on."""
    bases, found = Places.bases, list[int]()

    def counted(self, digests):
        found.append(len(set(digests)))
        return bases(self, digests)

    monkeypatch.setattr(Places, "bases", counted)
    return found


def test_no_chain_is_followed_to_its_end(looks):
    """Or a pack of some MiB would keep who looks up one of its chunks busy for hours."""
    links, places = [digest(str(number)) for number in range(1000)], Places()
    for below, above in pairwise(links):
        places.add(0, ChunkLocation(above, "a", 64, 10, 20, 1, below))
    assert places.closure(links[-1:]) == {}
    assert len(looks) <= DEEPEST + 1


def test_no_chain_is_followed_to_its_end_in_a_catalog(looks, tmp_path):
    catalog = open_catalog(sqlite_url(tmp_path / "catalog.sqlite"), create=True)
    links = [str(number) for number in range(100)]
    make(catalog, new_commit(0, [new_pack(above, on=[below]) for below, above in pairwise(links)]))
    assert catalog.locate([digest(links[-1])]) == {}
    assert len(looks) <= 2 * (DEEPEST + 1)
    catalog.close()
