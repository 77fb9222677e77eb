from __future__ import annotations

from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import UnknownType
from ckptstore.format.manifest import TensorEntry
from ckptstore.state.addresses import identity, same_place
from ckptstore.state.arrays import Array, chunk_bytes, plain_bytes, writable_array, write_box
from ckptstore.state.dtypes import dtype_name, numpy_dtype, torch_dtype
from ckptstore.state.new_arrays import allocate, finish
from ckptstore.state.tensors import TensorLeaf, misfit_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import TORCH_DTYPES, dense_tensors, numpy_arrays
from tests.integrations.tiled_planners import Far

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about complex32


def entry_of(array: Array) -> TensorEntry:
    leaf = TensorLeaf(array)
    return leaf.entry(tuple(max(extent, 1) for extent in leaf.shape))


def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes that tile a shape."""
    cuts = []
    for extent in shape:
        inner = draw(st.sets(st.integers(1, max(extent - 1, 1)))) if extent > 1 else set()
        cuts.append(list(pairwise(sorted({0, extent} | inner))))
    return [(tuple(a for a, _ in box), tuple(b for _, b in box)) for box in product(*cuts)]


@given(st.data(), dense_tensors() | numpy_arrays())
def test_an_array_comes_back_from_its_chunks(data: st.DataObject, array: Array):
    entry = entry_of(array)
    made = allocate("a", entry)
    for start, stop in boxes(data.draw, entry.shape):  # type: ignore[arg-type]
        piece = chunk_bytes(array, start, stop)
        assert len(piece) == entry.itemsize * prod(b - a for a, b in zip(start, stop, strict=True))
        write_box(made, start, stop, piece)
    assert_same(finish("a", made, entry), array)


@given(dense_tensors() | numpy_arrays())
def test_plain_bytes_are_those_of_the_chunk(array: Array):
    whole = chunk_bytes(array, (0,) * array.ndim, tuple(array.shape))
    assert whole.format == "B"
    plain = plain_bytes(array)
    if plain is not None:
        assert plain == whole
    else:
        assert not isinstance(array, torch.Tensor) or not array.is_contiguous() or array.is_conj() or array.is_neg()


def test_lazy_negation_is_done():
    lazy = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert lazy.is_neg()
    assert bytes(chunk_bytes(lazy, (0,), (2,))) == np.array([-2, 4], "<f4").tobytes()


def test_known_bytes():
    assert bytes(chunk_bytes(torch.tensor([1.0, -2.0]), (0,), (2,))) == bytes.fromhex("0000803f000000c0")
    assert bytes(chunk_bytes(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).t(), (0, 0), (1, 2))) == b"\1\0\3\0"
    assert bytes(chunk_bytes(torch.tensor([1 + 2j], dtype=torch.complex128).conj(), (0,), (1,)))[8:] == (
        bytes.fromhex("00000000000000c0")
    )
    assert bytes(chunk_bytes(np.array([1, 2], ">i2"), (1,), (2,))) == b"\0\2"
    assert bytes(chunk_bytes(torch.tensor(True), (), ())) == b"\1"


def test_contiguous_memory_is_not_copied():
    tensor = torch.zeros(8, 4)
    view = chunk_bytes(tensor, (2, 0), (4, 4))
    tensor[2, 0] = 1.0
    assert view[3] == 0x3F
    writable = writable_array(tensor)
    assert writable is not None
    writable.data[:4] = bytes(4)
    writable[2] = 0x80
    assert tensor[0, 0] != 0


def test_a_view_shows_only_its_own():
    base = torch.arange(1000)
    leaf = TensorLeaf(base[10:12])
    assert leaf.nbytes == 16
    plain = plain_bytes(leaf.tensor)
    assert plain is not None
    assert plain.tobytes() == (10).to_bytes(8, "little") + (11).to_bytes(8, "little")


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]):
    count = prod(shape) * dtype.itemsize
    bits = torch.arange(1, count + 1, dtype=torch.uint8) if dtype is not torch.bool else torch.ones(count).byte()
    tensor = (
        torch.empty(0, dtype=dtype).set_(bits.untyped_storage()).view(shape)
        if count
        else torch.empty(shape, dtype=dtype)
    )
    entry = entry_of(tensor)
    assert entry.dtype == str(dtype).removeprefix("torch.")
    made = allocate("a", entry)
    data = chunk_bytes(tensor, (0,) * len(shape), shape)
    assert data == bits.numpy().tobytes()
    write_box(made, (0,) * len(shape), shape, data)
    assert_same(made, tensor)
    if shape == (2, 3):
        assert (
            bytes(chunk_bytes(tensor.t(), (1, 0), (2, 1)))
            == bits[dtype.itemsize : 2 * dtype.itemsize].numpy().tobytes()
        )


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_channels_last_keeps_its_strides(memory_format: torch.memory_format):
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=memory_format)
    assert allocate("a", entry_of(tensor)).stride() == tensor.stride()  # type: ignore[union-attr]


def test_expanded_comes_back_dense():
    entry = entry_of(torch.ones(1, 3).expand(4, 3))
    made = allocate("a", entry)
    assert isinstance(made, torch.Tensor)
    assert made.is_contiguous()


@given(st.data(), dense_tensors())
def test_a_target_of_any_layout_is_filled_in_place(data: st.DataObject, target: torch.Tensor):
    if misfit_of("p", entry_of(target), target) is not None:
        return
    count = target.nbytes
    bits = data.draw(st.binary(min_size=count, max_size=count))
    if target.dtype is torch.bool:
        bits = bytes(bit & 1 for bit in bits)
    write_box(target, (0,) * target.ndim, tuple(target.shape), memoryview(bits))
    assert bytes(chunk_bytes(target, (0,) * target.ndim, tuple(target.shape))) == bits


def test_finish_makes_parameters_and_tracks():
    parameter = finish("a", torch.ones(2), entry_of(torch.nn.Parameter(torch.ones(2), requires_grad=False)))
    assert type(parameter) is torch.nn.Parameter
    assert not parameter.requires_grad
    tracked = finish("a", torch.ones(2), entry_of(torch.ones(2, requires_grad=True)))
    assert type(tracked) is torch.Tensor
    assert tracked.requires_grad


@pytest.mark.parametrize(
    ("target", "misfit"),
    [
        (torch.ones(3, 4), None),
        (torch.ones(4, 3).t(), None),
        (torch.ones(3, 4, dtype=torch.bfloat16), "w: float32[3, 4] in the commit, bfloat16[3, 4] in the target"),
        (torch.ones(4, 3), "w: float32[3, 4] in the commit, float32[4, 3] in the target"),
        (np.ones((3, 4), "f4"), "w: float32[3, 4] in the commit, numpy <f4[3, 4] in the target"),
        (torch.ones(1, 4).expand(3, 4), "w: elements of the target share memory, as in an expanded tensor"),
        (5, "w: float32[3, 4] in the commit, a int in the target"),
    ],
)
def test_what_fits(target: object, misfit: str | None):
    assert misfit_of("w", entry_of(torch.ones(3, 4)), target) == misfit


def test_a_read_only_target_does_not_fit():
    array = np.ones(3)
    entry = entry_of(array)
    assert misfit_of("w", entry, array) is None
    array.flags.writeable = False
    assert writable_array(array) is None
    assert misfit_of("w", entry, array) == "w: the target is read-only"


def test_identity():
    tensor = torch.randn(4, 4, dtype=torch.complex64)
    assert identity(tensor) == identity(tensor.view(4, 4))
    others: list[Any] = [tensor[:2], tensor.t(), tensor.conj(), tensor.view(torch.int64), torch.nn.Parameter(tensor)]
    assert len({identity(other) for other in [tensor, *others]}) == 6
    assert identity(torch.empty(0)) != identity(torch.empty(0))


def test_tensors_without_addresses_are_told_apart():
    one, other = (torch.full((30, 4), value).as_subclass(Far) for value in (1.0, 2.0))
    for key in (identity, same_place):
        assert key(one) == key(one) != key(other)


@pytest.mark.parametrize("dtype", [">f4", "M8[3us]", "U5", "S0", "V7", [("a", "i1"), ("b", ("f4", (2, 3)))], "g"])
def test_numpy_dtypes_have_names(dtype: Any):
    found = np.dtype(dtype)
    assert numpy_dtype("a", dtype_name(found)) == found


def test_odd_structures_have_names():
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["i4", ">i2"], "offsets": [0, 2], "itemsize": 9})
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    assert numpy_dtype("a", dtype_name(overlapping)) == overlapping
    assert numpy_dtype("a", dtype_name(aligned)).isalignedstruct


@pytest.mark.parametrize("dtype", ["O", [("a", "O")], np.dtypes.StringDType(), (np.record, [("a", "i4")])])
def test_objects_have_no_dtype_name(dtype: Any):
    with pytest.raises(TypeError, match="no exact name"):
        dtype_name(np.dtype(dtype))


@pytest.mark.parametrize(
    "name", ["O", "float99", '{"names":["a"],"formats":["O"],"offsets":[0],"itemsize":8}', "[1]", "{", "[" * 100_000]
)
def test_unknown_dtypes(name: str):
    with pytest.raises(UnknownType, match=r"^'a/b': numpy .* has no dtype"):
        numpy_dtype("a/b", name)
    with pytest.raises(UnknownType, match=r"^'a/b': torch .* has no dtype"):
        torch_dtype("a/b", name)
