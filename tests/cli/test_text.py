from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ckptstore.cli import text
from ckptstore.cli.table import Column, cropped, lines
from ckptstore.cli.values import shown
from ckptstore.errors import UnsupportedLeaf
from ckptstore.state.values import encode
from ckptstore.testing.states import SCALARS

COLUMNS = (Column("NUMBER", right=True), Column("PATH", fold=True), Column("NOTE", crop=True))
CELLS = st.text(st.characters(exclude_categories=["C", "M", "Z"]), max_size=60)
ROWS = st.lists(st.tuples(st.integers(0, 10**9).map(str), CELLS, CELLS), max_size=5)


@given(ROWS, st.integers(40, 120))
def test_a_table_fits_and_folds_without_loss(rows, width):
    found = list(lines(COLUMNS, rows, width))
    assert all(cell_len(line) <= width for line in found)
    everything = "".join("".join(line.split()) for line in found)
    for _, path, _ in rows:
        assert sorted(set(path) - set(everything)) == []


@given(ROWS)
def test_a_table_without_a_width_is_whole(rows):
    found = list(lines(COLUMNS, rows, None))
    assert [line.split() for line in found[1:]] == [[cell for cell in row if cell] for row in rows]


def test_columns_line_up():
    rows = [["1", "a", "x"], ["100", "b" * 30, "y" * 30]]
    assert list(lines(COLUMNS, rows, 40)) == [
        "NUMBER  PATH             NOTE",
        "     1  a                x",
        f"   100  {'b' * 15}  {'y' * 14}…",
        f"        {'b' * 15}",
    ]


def test_ten_thousand_rows_are_fast():
    rows = [[str(number), f"model/layers.{number}.weight", "note"] for number in range(10_000)]
    start = time.perf_counter()
    assert sum(1 for _ in lines(COLUMNS, rows, 80)) == 10_001
    assert time.perf_counter() - start < 2


@given(st.text(max_size=30), st.integers(2, 20))
def test_cropping(whole, width):
    short = cropped(whole, width)
    assert cell_len(short) <= width and (short == whole or short.endswith("…"))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9996, "10.0 kB"),
        (99960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1_455_612, "1.46 MB"),
        (10**15, "1.00 PB"),
        (10**19, "10000 PB"),
    ],
)
def test_sizes(count, expected):
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7300, "2 h"), (90000, "1 d")]
)
def test_ages(seconds, expected):
    assert text.age(seconds) == expected


def test_metadata():
    assert text.metadata({"loss": 1.23456, "n": 3, "s": "a\nb", "l": [1, {"é": None}]}) == (
        r'loss=1.235 n=3 s=a\nb l=[1,{"é":null}]'
    )


@given(st.text())
def test_cleaned_text_can_be_printed(whole):
    assert text.clean(whole).isprintable()
    text.clean(whole).encode()


@given(SCALARS)
def test_every_value_is_shown(value):
    try:
        encoded = encode(value, "path")
    except UnsupportedLeaf:
        return
    assert shown(encoded) and not shown(encoded).startswith("<path")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_values_are_shown_as_python(value):
    assert ast.literal_eval(shown(encode(value, "path"))) == value


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ({"path": ["PosixPath", "/a"]}, "PosixPath('/a')"),
        ({"enum": ["module:Colour", "RED"]}, "Colour.RED"),
        ({"datetime": ["2024-01-01T00:00:00", 0, None]}, "2024-01-01T00:00:00"),
        ({"torch.Size": [2, 3]}, "torch.Size([2, 3])"),
        ({"torch.device": "cuda:1"}, "torch.device('cuda:1')"),
        ({"numpy": ["<f4", b"\0\0\xc0?"]}, "numpy.float32(1.5)"),
        ({"set": []}, "set()"),
        ({"float": "7ff8000000000000"}, "nan"),
        ({"pickle": b"123"}, "<pickle, 3 bytes>"),
        ({"of the future": [1, "a"]}, "of the future(1, 'a')"),
        ({"complex": ["damaged"]}, "<complex>"),
        ({"datetime": 3}, "<datetime>"),
    ],
)
def test_kinds_of_values(encoded, expected):
    assert shown(encoded) == expected


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


def test_what_nobody_writes_is_shown_as_well_as_it_can_be():
    zone = ["x", [{"timedelta": [10**18, 0, 0]}]]
    assert shown({"time": ["12:00", 0, {"dict": zone}]}) == "<time>"
    assert shown(nested(600)) == "<a value in too many others>"
