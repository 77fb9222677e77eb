from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import InvalidArgument
from ckptstore.format.grid import Division, Grid, default_chunk_shape
from ckptstore.format.selection import contiguous_span, contiguous_spans, everything, select

SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
ITEMSIZES = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def grids(draw):
    shape = draw(SHAPES)
    return Grid(shape, tuple(draw(st.integers(1, 5)) for _ in shape))


@st.composite
def indices(draw, shape):
    def one(extent):
        picks = st.integers(-extent, extent - 1) if extent else st.nothing()
        steps = st.builds(slice, *2 * [st.none() | st.integers(-12, 12)], st.none() | st.integers(1, 4))
        return draw(picks | steps if extent else steps)

    items = [one(extent) for extent in shape[: draw(st.integers(0, len(shape)))]]
    if draw(st.booleans()):
        behind = draw(st.integers(0, len(shape) - len(items)))
        items = [*items, ..., *(one(extent) for extent in shape[len(shape) - behind :])]
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@given(grids())
def test_chunks_tile_the_array(grid):
    seen = np.zeros(grid.shape, int)
    for number in range(len(grid)):
        start, stop = grid.box(number)
        assert all(low < high for low, high in zip(start, stop, strict=True))
        seen[tuple(map(slice, start, stop))] += 1
    assert (seen == 1).all()


@given(grids(), ITEMSIZES)
def test_sizes(grid, itemsize):
    boxes = [grid.box(number) for number in range(len(grid))]
    extents = [[high - low for low, high in zip(*box, strict=True)] for box in boxes]
    assert grid.sizes(itemsize) == [prod(extent) * itemsize for extent in extents]


@given(grids())
def test_consecutive_chunks_are_the_array_in_order(grid):
    array = np.arange(prod(grid.shape)).reshape(grid.shape)
    chunks = [array[tuple(map(slice, *grid.box(number)))].reshape(-1) for number in range(len(grid))]
    in_order = np.array_equal(np.concatenate(chunks) if chunks else array.reshape(-1), array.reshape(-1))
    assert grid.is_consecutive == in_order or not array.size


@given(grids(), st.data())
def test_touching_chunks_are_those_that_share_an_element(grid, data):
    pairs = [sorted(data.draw(st.tuples(*2 * [st.integers(0, extent)]))) for extent in grid.shape]
    start, stop = tuple(low for low, _ in pairs), tuple(high for _, high in pairs)

    def shares(number):
        low, high = grid.box(number)
        edges = zip(low, high, start, stop, strict=True)
        return all(max(a, c) < min(b, d) for a, b, c, d in edges)

    assert list(grid.touching(start, stop)) == [number for number in range(len(grid)) if shares(number)]


@given(SHAPES, ITEMSIZES, st.integers(1, 600), st.booleans())
def test_a_default_chunk_is_contiguous_and_small(shape, itemsize, most, halved):
    grid = Grid(shape, default_chunk_shape(shape, itemsize, Division(most, halved)))
    assert grid.is_consecutive
    for number in range(len(grid)):
        start, stop = grid.box(number)
        size = itemsize * prod(high - low for low, high in zip(start, stop, strict=True))
        assert size <= max(most, itemsize)
        assert contiguous_span(shape, start, stop) is not None


@given(SHAPES, ITEMSIZES, st.integers(64, 600), st.booleans())
def test_default_chunks_are_not_needlessly_small(shape, itemsize, most, halved):
    grid = Grid(shape, default_chunk_shape(shape, itemsize, Division(most, halved)))
    total = prod(shape) * itemsize
    if total <= most:
        assert len(grid) == bool(total)
    else:
        assert max(grid.sizes(itemsize)) * 2 * max(shape) > most


@given(st.integers(1, 99), st.integers(0, 12), st.integers(0, 200))
def test_equal_shards_of_2_4_8_ranks_end_where_chunks_do(odd, halvings, room):
    rows = odd << halvings
    (height,) = default_chunk_shape((rows,), 1, Division(odd + room, halved=True))
    assert 2 * height > odd + room or height == rows
    for shard in (rows >> power for power in range(halvings + 1)):
        assert shard < height or shard % height == 0


@pytest.mark.parametrize(("rows", "halved"), [((5001, 9999), True), ((5000, 9984), False)])
def test_other_rows_are_cut_at_a_power_of_two_whatever_the_length(rows, halved):
    short, long = (default_chunk_shape((count, 1000), 4, Division(1 << 20, halved)) for count in rows)
    assert short == long == (256, 1000)


@given(st.data())
def test_selecting_is_numpy_indexing(data):
    shape = data.draw(SHAPES)
    index = data.draw(indices(shape))
    array = np.arange(prod(shape)).reshape(shape)
    grid = Grid(shape, tuple(data.draw(st.integers(1, 5)) for _ in shape))
    selection = select(shape, index)
    result = np.full(selection.full_shape, -1)
    for part in selection.parts(grid):
        start, stop = grid.box(part.number)
        chunk = array[tuple(map(slice, start, stop))]
        given_part = chunk[part.source]
        assert part.whole == (given_part.shape == chunk.shape)
        result[tuple(map(slice, part.start, part.stop))] = given_part
    expected = array[index]
    kept = tuple(extent for dim, extent in enumerate(selection.full_shape) if dim not in selection.dropped)
    assert np.array_equal(result.reshape(kept), expected)
    assert expected.shape == kept


@given(grids())
def test_everything_takes_every_chunk_whole(grid):
    parts = list(everything(grid.shape).parts(grid))
    assert [part.number for part in parts] == list(range(len(grid)))
    assert all(part.whole for part in parts)


@given(st.data())
def test_contiguous_span(data):
    shape = data.draw(SHAPES.filter(all))
    pairs = [sorted(data.draw(st.tuples(st.integers(0, e - 1), st.integers(1, e)))) for e in shape]
    start, stop = tuple(low for low, _ in pairs), tuple(max(high, low + 1) for low, high in pairs)
    places = np.arange(prod(shape)).reshape(shape)[tuple(map(slice, start, stop))].reshape(-1)
    spans = list(contiguous_spans(shape, start, stop))
    assert [place for first, count in spans for place in range(first, first + count)] == list(places)
    span = contiguous_span(shape, start, stop)
    if (np.diff(places) == 1).all():
        assert span == (places[0], len(places))
    else:
        assert span is None


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((0, 0, 0), "more entries than the 2 dims"),
        ((..., ...), "more entries"),
        (3, "out of range for dim 0 of extent 3"),
        ((0, -5), "out of range for dim 1"),
        (slice(None, None, -1), "backwards"),
        (slice(None, None, 0), "slice"),
        (slice("a"), "slice"),
        (True, "bool"),
        ([0, 1], "list"),
        (None, "NoneType"),
        (np.array([0, 1]), "ndarray"),
        (np.array(1.5), "ndarray"),
        (np.array(True), "ndarray"),
        (np.True_, "bool"),
        (torch.tensor(1.5), "Tensor"),
        (torch.tensor(True), "Tensor"),
        (1.5, "float"),
    ],
)
def test_what_no_index_is(index, message):
    with pytest.raises(InvalidArgument, match=message):
        select((3, 4), index)


@pytest.mark.parametrize("number", [np.int64(-1), np.array(-1), torch.tensor(-1)])
def test_numbers_of_numpy_and_torch_are_ints(number):
    assert select((3,), number) == select((3,), 2)
