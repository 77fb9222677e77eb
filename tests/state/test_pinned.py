"""Memory of the host that CUDA devices reach by themselves: it is pinned as long as anybody has it, and no longer."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ckptstore.state.cuda import CudaLane, cuda_lane
from ckptstore.state.pinned import kept, pinned

DEVICE = torch.device("cuda", 0)
SIZE = (1 << 20) + 5

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's allocator pins it")
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class FakeCuda:
    """What is done to memory, in order; registering may fail."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = 0) -> None:
        self.happened: list[Any] = []
        self.used: Any = SimpleNamespace(synchronize=lambda: self.happened.append("used"))
        self._error = error
        monkeypatch.setattr(torch.cuda, "device", lambda _: self)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)

    def __enter__(self) -> None:
        self.happened.append("device")

    def __exit__(self, *_: object) -> None:
        pass

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.happened.append(("registered", address, size, flags))
        return self._error

    def cudaHostUnregister(self, address: int) -> None:
        self.happened.append(("let go", address))


@on_linux
def test_what_is_kept_is_pinned_until_its_last_part_is_gone(monkeypatch):
    fake = FakeCuda(monkeypatch)
    memory = kept(SIZE, DEVICE, fake.used)
    address = memory.data_ptr()
    memory.fill_(7)
    assert (memory.dtype, memory.shape) == (torch.uint8, (SIZE,))
    assert fake.happened == ["device", ("registered", address, SIZE, 1)]
    memory = memory[100:].view(-1)[:9]
    assert len(fake.happened) == 2
    assert memory.tolist() == [7] * 9
    del memory
    assert fake.happened[2:] == ["device", "used", ("let go", address)]


@on_linux
def test_forked_processes_do_not_get_it(monkeypatch):
    memory = kept(SIZE, DEVICE, FakeCuda(monkeypatch).used)
    flags = rf"^{memory.data_ptr():x}-.*?^VmFlags:(.*?)$"
    found = re.search(flags, Path("/proc/self/smaps").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    assert "dc" in found[1].split()  # "do not copy area on fork"


@on_linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_what_cannot_be_registered_is_pinned_as_torch_does(monkeypatch):
    def once_more(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    fake = FakeCuda(monkeypatch, error=2)
    monkeypatch.setattr(torch, "zeros", once_more)
    with pytest.warns(UserWarning, match=f"pins no {SIZE} bytes"):
        memory = kept(SIZE, DEVICE, fake.used)
    assert memory.shape == (SIZE,)
    del memory
    assert len(fake.happened) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_where_nothing_can_be_pinned_copies_go_on():
    with pytest.warns(UserWarning, match="pins no 5000 bytes"):
        assert pinned(5000).shape == (5000,)


class TestOnGpu:
    pytestmark = on_a_gpu

    def lane(self) -> CudaLane:
        return cuda_lane(torch.empty(1, device=DEVICE))

    def test_kept_memory_is_pinned(self):
        memory = self.lane().kept(SIZE)
        assert memory.is_pinned()
        assert memory[9:].is_pinned()

    def test_who_drops_it_while_work_is_under_way_waits_for_that(self):
        def copy(target: Tensor) -> None:
            target.copy_(source, non_blocking=True)
            done.record()

        lane, source, done = self.lane(), torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE), torch.cuda.Event()
        lane.follow()
        for _ in range(3):
            memory = lane.kept(1 << 30)
            lane.submit(partial(copy, memory))
            del memory
            assert done.query()

    def test_what_cannot_be_registered_leaves_no_error_behind(self, monkeypatch):
        def twice(address: int, size: int, flags: int) -> Any:
            registered.append(address)
            real.cudaHostRegister(address, size, flags)
            return real.cudaHostRegister(address, size, flags)

        real, registered = torch.cuda.cudart(), list[int]()
        fake = SimpleNamespace(cudaHostRegister=twice, cudaError=real.cudaError)
        with monkeypatch.context() as failing:
            failing.setattr(torch.cuda, "cudart", lambda: fake)
            memory = self.lane().kept(SIZE)
        real.cudaHostUnregister(registered[0])
        assert memory.is_pinned()
        assert memory.data_ptr() != registered[0]
        total: Tensor = torch.ones(5, device=DEVICE).sum()
        assert total.item() == 5
