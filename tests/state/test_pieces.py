from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.errors import InvalidArgument
from ckptstore.state.pieces import PiecedTensor, TensorPiece
from ckptstore.testing.equality import assert_same

EXTENTS = st.lists(st.integers(0, 9), max_size=3)


def tiles(data, shape):
    """A tensor's boxes, cut anywhere along each dim, in any order."""
    cuts = [sorted({0, extent, *data.draw(st.lists(st.integers(0, extent), max_size=3))}) for extent in shape]
    edges = [list(itertools.pairwise(cut)) or [(0, 0)] for cut in cuts]
    boxes = [tuple(zip(*box, strict=True)) or ((), ()) for box in itertools.product(*edges)]
    return data.draw(st.permutations(boxes))


def pieced(tensor, boxes):
    parts = [TensorPiece(start, stop, tensor[*map(slice, start, stop), ...].clone) for start, stop in boxes]
    return PiecedTensor(torch.empty_like(tensor, device="meta"), parts)


@given(st.data(), EXTENTS, st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex128]))
def test_any_box_of_any_pieces(data, shape, dtype):
    count = torch.Size(shape).numel()
    plain = torch.arange(count * dtype.itemsize, dtype=torch.int64).to(torch.uint8)
    tensor = plain.view(dtype).view(shape)
    source = pieced(tensor, tiles(data, shape))
    start = tuple(data.draw(st.integers(0, extent)) for extent in shape)
    stop = tuple(data.draw(st.integers(low, extent)) for low, extent in zip(start, shape, strict=True))
    inside = tuple(map(slice, start, stop))
    assert bytes(source.box(start, stop)) == plain.numpy().reshape(*shape, dtype.itemsize)[inside].tobytes()


@pytest.mark.parametrize("background", [False, True])
def test_a_commit_of_pieces_is_that_of_the_tensor(tmp_path, background):
    whole = torch.arange(70 * 300, dtype=torch.int32).view(70, 300)
    halves = [((0, 0), (70, 100)), ((0, 100), (70, 300))]
    turned = torch.arange(6.0).view(2, 3).t()
    state = {"halves": pieced(whole, halves), "turned": pieced(turned, [((0, 0), (3, 2))]), "n": 1}
    with ckptstore.open(tmp_path, chunk_bytes=4096) as store:
        made = store.commit_async(state, step=1).result() if background else store.commit(state, step=1)
        assert_same(store.checkout(1), {"halves": whole, "turned": turned, "n": 1})
        assert store.commit({"halves": whole, "turned": turned, "n": 1}, step=1).id == made.id


@pytest.mark.parametrize("background", [False, True])
def test_one_tensor_of_pieces_at_two_paths_is_tied(tmp_path, background):
    one, other = (pieced(torch.arange(6), [((0,), (6,))]) for _ in range(2))
    state = {"a": one, "b": other, "c": one}
    with ckptstore.open(tmp_path) as store:
        store.commit_async(state, step=1).result() if background else store.commit(state, step=1)
        found = store.checkout(1)
        assert found["a"] is found["c"] and found["a"] is not found["b"]


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([((0, 0), (2, 3))], "6 of 12 elements"),
        ([((0, 0), (4, 3)), ((3, 2), (4, 3))], "overlaps"),
        ([((0, 0), (4, 3)), ((0, 0), (4, 3))], "overlaps"),
        ([((0, 0), (4, 4))], "beyond"),
        ([((-1, 0), (3, 3))], "beyond"),
        ([((0,), (4,))], "dims"),
        ([], "0 of 12"),
    ],
)
def test_pieces_that_are_not_the_tensor(boxes, message):
    form = torch.empty(4, 3, device="meta")
    with pytest.raises(InvalidArgument, match=message):
        PiecedTensor(form, [TensorPiece(start, stop, lambda: form) for start, stop in boxes])
