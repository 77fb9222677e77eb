"""Boxes of leaves on devices."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptstore.state.addresses import pointer
from ckptstore.state.arrays import chunk_bytes
from ckptstore.state.devices.leaf import DeviceLeaf, bring_all
from ckptstore.state.devices.staging import DeviceStager
from ckptstore.state.tensors import TensorLeaf
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
        assert isinstance(leaf, DeviceLeaf)
        found, all_of_it, span = leaf.box(start, stop), leaf.row_major(), leaf.span(start, stop)
    expected = chunk_bytes(tensor, start, stop)
    assert found == expected
    assert span is None or all_of_it[slice(*span)] == expected
    places = torch.arange(tensor.numel()).view(shape)[tuple(map(slice, start, stop))].flatten()
    assert (span is not None) == bool((places.diff() == 1).all())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=1, max_size=12),
    room=st.sampled_from([0, 1 << 20, 400]),
    together=st.sampled_from([0, 100, 1 << 20]),
    ahead=st.sampled_from([0, 500, 1 << 20]),
)
def test_ranges_come_in_order_however_they_cross(monkeypatch, seed, sizes, room, together, ahead):
    monkeypatch.setattr("ckptstore.state.devices.leaf._TOGETHER", together)
    monkeypatch.setattr("ckptstore.state.devices.leaf._AHEAD", ahead)
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size, _ in sizes]
    with FakeDevices(seed, 2, room) as devices:
        leaves = {str(at): TensorLeaf(devices.put(tensor, sizes[at][1])) for at, tensor in enumerate(tensors)}
        staged = DeviceStager().stage(leaves, apart=True)
        there = [leaf for path in leaves if isinstance(leaf := staged[path], DeviceLeaf)]
        wanted = [(leaf, (len(it) // 3, len(it))) for leaf, it in zip(there, tensors, strict=True)]
        found = list(bring_all(iter(wanted)))
    assert found == [it[len(it) // 3 :].numpy().data for it in tensors]
    assert all(
        pointer(np.frombuffer(it, np.uint8)) % 64 == 0
        for it, (leaf, _) in zip(found, wanted, strict=True)
        if not leaf.shadow.on_host
    )
