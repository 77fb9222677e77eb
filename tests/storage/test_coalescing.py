from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import InvalidArgument
from ckptstore.storage import RangeRead
from ckptstore.storage.coalescing import coalesce, end_of


def wish(offset, length):
    return RangeRead(offset, memoryview(bytearray(length)))


def spans(groups):
    return [(group[0].offset, end_of(group[-1])) for group in groups]


@given(
    st.lists(st.builds(wish, st.integers(0, 200), st.integers(0, 20)), max_size=30),
    st.integers(0, 20),
    st.integers(0, 60),
)
def test_rules(reads, gap, most):
    groups = coalesce(reads, gap, most)
    assert sorted(id(read) for group in groups for read in group) == sorted(id(read) for read in reads if read.out)
    for group in groups:
        for one, other in pairwise(group):
            assert 0 <= other.offset - end_of(one) <= gap
        assert len(group) == 1 or end_of(group[-1]) - group[0].offset <= most
    for group, following in pairwise(groups):
        near = 0 <= following[0].offset - end_of(group[-1]) <= gap
        assert not (near and end_of(following[0]) - group[0].offset <= most)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([], []),
        ([(5, 0)], []),
        ([(0, 10), (10, 10)], [(0, 20)]),
        ([(20, 10), (0, 10)], [(0, 30)]),
        ([(21, 10), (0, 10)], [(0, 10), (21, 31)]),
        ([(0, 10), (5, 10)], [(0, 10), (5, 15)]),
        ([(0, 40), (40, 40), (80, 40)], [(0, 80), (80, 120)]),
        ([(0, 1000), (1000, 1)], [(0, 1000), (1000, 1001)]),
    ],
)
def test_examples(reads, expected):
    assert spans(coalesce([wish(*read) for read in reads], gap=10, most=100)) == expected


def test_negative_offset():
    with pytest.raises(InvalidArgument, match="-1"):
        coalesce([wish(-1, 1)], 0, 100)
