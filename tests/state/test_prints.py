"""What changed, and what of it is copied: no changed byte is left out, and no digest of one is kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.state.devices.fingerprints import SEGMENT, segments
from ckptstore.state.devices.prints import Prints, changed_spans, untouched


@st.composite
def leaves(draw):
    """Sizes, some of them none, and which segments of each changed."""
    sizes = draw(st.lists(st.integers(0, 5 * SEGMENT), max_size=6))
    return {str(at): (size, draw(flags(segments(size)))) for at, size in enumerate(sizes)}


def flags(count):
    return st.lists(st.booleans(), min_size=count, max_size=count)


def prints(found, changed):
    """Of leaves whose fingerprints are 0, but where something changed."""
    rows = [[0, int(flag and changed)] for _, marks in found.values() for flag in marks]
    return Prints({path: size for path, (size, _) in found.items()}, np.array(rows, np.int64).reshape(-1, 2))


@given(leaves(), st.booleans())
def test_changes_are_those_of_each_leaf(found, reordered):
    before = dict(reversed(found.items())) if reordered else found
    changes = prints(found, changed=True).changes(prints(before, changed=False))
    expected = {path: marks for path, (_, marks) in found.items() if any(marks)}
    assert {path: marks.tolist() for path, marks in changes.items()} == expected


@given(leaves())
def test_all_is_new_where_nothing_was_before(found):
    changes = prints(found, changed=False).changes(None)
    assert {path: len(marks) for path, marks in changes.items()} == {
        path: segments(size) for path, (size, _) in found.items() if size
    }
    assert all(marks.all() for marks in changes.values())


@given(st.integers(1, 9 * SEGMENT), st.data(), st.integers(0, 4 * SEGMENT))
def test_spans_hold_what_changed_and_no_more_than_gaps_beside(size, data, gap):
    changed = np.array(data.draw(flags(segments(size)).filter(any)))
    spans = changed_spans(changed, size, gap)
    covered = np.zeros(size, np.bool_)
    for start, stop in spans:
        assert start < stop <= size
        covered[start:stop] = True
    expected = np.repeat(changed, SEGMENT)[:size]
    assert (covered >= expected).all()
    for (_, stop), (start, _) in pairwise(spans):
        assert start - stop > gap
    if gap < SEGMENT:
        assert (covered == expected).all()
    assert expected[spans[0][0]]
    assert expected[spans[-1][1] - 1]


@given(st.integers(1, 5), st.data())
def test_digests_stay_of_spans_that_nothing_touched(count, data):
    changed = np.array(data.draw(flags(count)))
    borders = sorted(data.draw(st.sets(st.integers(0, count * SEGMENT), min_size=2, max_size=6)))
    digests = {span: bytes([at]) for at, span in enumerate(pairwise(borders))}
    expected = np.repeat(changed, SEGMENT)
    kept = untouched(digests, changed)
    assert kept == {span: digest for span, digest in digests.items() if not expected[slice(*span)].any()}
