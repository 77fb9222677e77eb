from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import InvalidArgument
from ckptstore.state import paths
from ckptstore.state.values import decode, encode
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import KEYS


@given(KEYS)
def test_a_segment_holds_its_key(key: object):
    segment = paths.segment(encode(key, "k"))
    assert segment
    assert "/" not in segment
    segment.encode()
    assert_same(decode(paths.parse(segment), "k"), key)


@given(st.lists(KEYS, min_size=2, max_size=6))
def test_other_keys_have_other_segments(keys: list[object]):
    segments = {paths.segment(encode(key, "k")) for key in keys}
    assert len(segments) == len({(type(key), repr(key)) for key in keys})


@pytest.mark.parametrize(
    ("key", "segment"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("a/b", "a%2Fb"),
        ("50%", "50%25"),
        (0, "0"),
        (-3, "-3"),
        ("0", "%30"),
        ("-3", "%2D3"),
        ("", '%("")'),
        (None, "%(null)"),
        (True, "%(true)"),
        (1.5, "%(1.5)"),
        ((0, "a/b"), '%({"tuple":[0,"a%2Fb"]})'),
        (b"\x01", '%({"bytes":"01"})'),
        ("é ü", "é ü"),
    ],
)
def test_segments_read_well(key: object, segment: str):
    assert paths.segment(encode(key, "k")) == segment


@pytest.mark.parametrize("segment", ["%(", "%(nul)", "%({"])
def test_what_is_no_segment_is_refused(segment: str):
    with pytest.raises(InvalidArgument, match=re.escape(segment)):
        paths.parse(segment)


def test_join_and_split():
    assert paths.join("", "model", "w") == "model/w"
    assert paths.split("model/w") == ("model", "w")
    assert paths.split("") == ()


@pytest.mark.parametrize(
    ("glob", "path", "selected"),
    [
        ("", "model/w", True),
        ("model", "model/w", True),
        ("mod", "model/w", False),
        ("model/*", "model/w", True),
        ("model/*", "model/a/b", True),
        ("*/w", "model/a/w", False),
        ("**/w", "model/a/w", True),
        ("**/w", "w", True),
        ("model/**/w", "model/w", True),
        ("model/**/w", "model/a/b/w", True),
        ("model/**", "model/a/b", True),
        ("model/**", "models/a", False),
        ("a**z", "a/b/z", True),
        ("w?", "w1", True),
        ("w?", "w/", False),
        ("w[0-3]", "w2", True),
        ("w[!0-3]", "w2", False),
        ("w[!0-3]", "w/", False),
        ("w[!0-3]", "w7", True),
        ("layers.[01].*", "layers.1.weight", True),
        ("layers.[01].*", "layersx1.weight", False),
        ("a[b]", "a[b]/c", True),
        ("a[b", "a[b", True),
        ("*", "line\nbreak", True),
        ("[]]", "]", True),
        ("[^a]", "^", True),
        ("[!]", "!", True),
        ("[z-a]", "b", False),
        ("[!z-a]", "b", True),
        ("[+--]", ",", True),
        ("[a&&b]", "&", True),
    ],
)
def test_globs(glob: str, path: str, selected: bool):
    assert paths.matches(path, glob) is selected


@given(st.text("ab/[]!*?\\^-%&|~", max_size=8), st.text("ab/[]!-", max_size=8))
def test_no_glob_breaks_and_every_path_selects_itself(glob: str, path: str):
    assert paths.matches(path, glob) in {True, False}
    assert paths.matches(path, path)
    assert paths.matches(f"{path}/below", path)
