"""Boxes of leaves on devices."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.state.device_staging import DeviceStager
from ckptstore.state.tensors import TensorLeaf, chunk_bytes
from ckptstore.testing.lanes import FakeDevices

DTYPES = [torch.int8, torch.bfloat16, torch.float32, torch.complex128]


@st.composite
def boxes(draw):
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    corners = [sorted(draw(st.tuples(st.integers(0, extent), st.integers(0, extent)))) for extent in shape]
    return shape, tuple(low for low, _ in corners), tuple(high for _, high in corners)


@given(boxes(), st.sampled_from(DTYPES), st.booleans())
def test_a_box_is_what_it_is_on_the_host(box, dtype, turned):
    shape, start, stop = box
    tensor = torch.randn(shape).mul(100).to(dtype)
    if turned and len(shape) > 1:
        tensor = tensor.mT.contiguous().mT
    with FakeDevices() as devices:
        leaf = DeviceStager().stage({"x": TensorLeaf(devices.put(tensor))}, apart=True)["x"]
        found, all_of_it, span = leaf.box(start, stop), leaf.row_major(), leaf.span(start, stop)
    expected = chunk_bytes(tensor, start, stop)
    assert found == expected
    assert span is None or all_of_it[slice(*span)] == expected
    places = torch.arange(tensor.numel()).view(shape)[tuple(map(slice, start, stop))].flatten()
    assert (span is not None) == bool((places.diff() == 1).all())
