"""The chunks of what a rank has, on their way from a device."""

from __future__ import annotations

import pytest
import torch

from ckptstore.format.grid import Grid
from ckptstore.operations.ranks.dealing import Shard
from ckptstore.operations.ranks.parts import Part, pieces_of
from ckptstore.state.devices.leaf import DeviceLeaf
from ckptstore.state.devices.staging import DeviceStager
from ckptstore.state.tensors import TensorLeaf
from ckptstore.testing.lanes import FakeDevices, FakeLane, FakeMark

SIDE = 64


@pytest.fixture
def log(monkeypatch):
    """What lanes are asked for, in order."""
    seen: list[str] = []

    def watch(cls, name):
        original = getattr(cls, name)

        def called(*arguments):
            seen.append(name)
            return original(*arguments)

        monkeypatch.setattr(cls, name, called)

    watch(FakeLane, "pinned")
    watch(FakeMark, "wait")
    return seen


@pytest.mark.parametrize("chunk", [(8, SIDE), (SIDE, 8)], ids=["in one range", "in many"])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_are_on_their_way_before_one_is_waited_for(log, monkeypatch, chunk, seed):
    monkeypatch.setattr("ckptstore.state.devices.leaf._TOGETHER", 0)  # which these small ones would cross
    tensor = torch.randn(SIDE, SIDE)
    grid = Grid((SIDE, SIDE), chunk)
    with FakeDevices(seed) as devices:
        leaf = DeviceStager().stage({"x": TensorLeaf(devices.put(tensor))}, apart=True)["x"]
        part = Part(Shard("x", 4, (SIDE, SIDE), (0, 0), (SIDE, SIDE)), tensor.dtype, lambda: leaf)
        units = list(part.units(grid))
        log.clear()
        pieces = pieces_of([*units, *units[::-1]])
    host = TensorLeaf(tensor)
    assert [piece.data for piece in pieces[:8]] == [host.box(*grid.box(number)) for number in range(8)]
    assert [piece.data for piece in pieces[:7:-1]] == [piece.data for piece in pieces[:8]]
    assert {piece.form for piece in pieces} == {host.form}
    if chunk[1] == SIDE:
        assert log == ["pinned"] * 16 + ["wait"] * 16
    else:
        assert log == ["pinned", "wait"] * 16


def test_digests_are_learned_for_ranges_of_devices():
    tensor = torch.randn(SIDE, SIDE)
    grid = Grid((2 * SIDE, SIDE), (8, SIDE))
    with FakeDevices() as devices:
        leaf = DeviceStager().stage({"x": TensorLeaf(devices.put(tensor))}, apart=True)["x"]
        assert isinstance(leaf, DeviceLeaf)
        shard = Shard("x", 4, (2 * SIDE, SIDE), (SIDE, 0), (2 * SIDE, SIDE))
        first, second = [unit.content.place() for unit in Part(shard, tensor.dtype, lambda: leaf).units(grid)][:2]
        assert first is not None
        assert second is not None
        second.learn(b"name")
    assert (first.span, second.span) == ((0, 2048), (2048, 4096))
    assert (first.known(), second.known(), leaf.digests()) == (None, b"name", {(2048, 4096): b"name"})
    on_host = Part(shard, tensor.dtype, lambda: TensorLeaf(tensor))
    assert {unit.content.place() for unit in on_host.units(grid)} == {None}
