"""Memory of the host that CUDA devices reach by themselves: it is pinned as long as anybody has it, and no longer."""

from __future__ import annotations

import mmap
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ckptstore.state.devices.cuda import CudaLane, cuda_lane
from ckptstore.state.devices.pinned import lasting, pinned

DEVICE = torch.device("cuda", 0)
SIZE = (1 << 20) + 5

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's allocator pins it")
on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class FakeCuda:
    """What is done to memory, in order; registering may fail, or be interrupted."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = 0, *, interrupt: bool = False) -> None:
        self.happened: list[Any] = []
        self._error, self._interrupt = error, interrupt
        monkeypatch.setattr(torch.cuda, "device", lambda _: self)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)

    def lasting(self) -> Tensor:
        """Some memory."""
        return lasting(SIZE, DEVICE, self.wait)

    def wait(self) -> None:
        self.happened.append("waited")

    def __enter__(self) -> None:
        self.happened.append("device")

    def __exit__(self, *_: object) -> None:
        pass

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self._interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        self.happened.append(("registered", address, size, flags))
        return self._error

    def cudaHostUnregister(self, address: int) -> None:
        assert mapping(address)
        self.happened.append(("let go", address))


def mapping(address: int) -> str:
    """The system's entry for the memory there; empty when there is none."""
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE):
        first, last = (int(it, 16) for it in entry.split(" ")[0].split("-")) if entry else (0, 0)
        if first <= address < last:
            return entry
    return ""


@on_linux
def test_what_lasts_is_pinned_until_its_last_part_is_gone(monkeypatch):
    fake = FakeCuda(monkeypatch)
    memory = fake.lasting()
    address = memory.data_ptr()
    memory.fill_(7)
    assert (memory.dtype, memory.shape) == (torch.uint8, (SIZE,))
    assert fake.happened == ["device", ("registered", address, SIZE, 1)]
    memory = memory[100:].view(-1)[:9]
    assert len(fake.happened) == 2
    assert memory.tolist() == [7] * 9
    del memory
    assert fake.happened[2:] == ["device", "waited", ("let go", address)]


@on_linux
@pytest.mark.parametrize("threads", [True, False])
def test_its_pages_are_there_if_threads_begin(monkeypatch, threads):
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    if not threads:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", none)
    memory = FakeCuda(monkeypatch).lasting()
    found = re.search(r"^Rss: +(\d+) kB", mapping(memory.data_ptr()), re.MULTILINE)
    assert found is not None
    assert (int(found[1]) << 10 >= SIZE) == threads


@on_linux
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_gets_its_room_and_nothing_of_it(monkeypatch):
    memory = FakeCuda(monkeypatch).lasting()
    memory.fill_(7)
    child = os.fork()
    if not child:
        os._exit(int(memory.numpy().any()))
    assert os.waitpid(child, 0)[1] == 0
    assert memory.eq(7).all()


@on_linux
@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_what_cannot_be_registered_is_pinned_as_torch_does(monkeypatch):
    def once_more(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    def given(size: int) -> Tensor:
        assert not mapping(fake.happened[1][1])  # or it would take the memory twice
        return pinned(size)

    fake = FakeCuda(monkeypatch, error=2)
    monkeypatch.setattr(torch, "zeros", once_more)
    monkeypatch.setattr("ckptstore.state.devices.pinned.pinned", given)
    with pytest.warns(UserWarning, match=f"pins no {SIZE} bytes"):
        assert fake.lasting().shape == (SIZE,)
    assert len(fake.happened) == 2


@on_linux
def test_where_no_room_is_mapped_torch_looks_for_some(monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    fake = FakeCuda(monkeypatch)
    monkeypatch.setattr(mmap, "mmap", full)
    monkeypatch.setattr("ckptstore.state.devices.pinned.pinned", lambda size: torch.empty(size, dtype=torch.uint8))
    assert fake.lasting().shape == (SIZE,)
    assert not fake.happened


@on_linux
@pytest.mark.usefixtures("interruptible")
def test_what_is_interrupted_while_it_is_registered_is_let_go(monkeypatch):
    fake = FakeCuda(monkeypatch, interrupt=True)
    with pytest.raises(KeyboardInterrupt):
        fake.lasting()
    until = time.monotonic() + 30
    while len(fake.happened) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    assert fake.happened[-1] == ("let go", fake.happened[1][1])


@on_linux
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("place", ["__enter__", "wait", "cudaHostUnregister"])
def test_what_is_interrupted_while_it_is_let_go_is(monkeypatch, place):
    def interrupted(fake: FakeCuda, *arguments: Any) -> None:
        if len(fake.happened) > 1:  # it is registered
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        its(fake, *arguments)

    its, unraisable = getattr(FakeCuda, place), list[Any]()
    monkeypatch.setattr(FakeCuda, place, interrupted)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    fake = FakeCuda(monkeypatch)
    memory = fake.lasting()
    del memory
    until = time.monotonic() + 30
    while len(fake.happened) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    assert fake.happened[2:] == ["device", "waited", ("let go", fake.happened[1][1])]
    assert [it.exc_type for it in unraisable] == [KeyboardInterrupt]  # Python reports it nowhere else


@on_linux
def test_it_is_let_go_even_when_the_device_failed(monkeypatch):
    def failed() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake, unraisable = FakeCuda(monkeypatch), list[Any]()
    monkeypatch.setattr(fake, "wait", failed)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    memory = fake.lasting()
    del memory
    assert fake.happened[-1] == ("let go", fake.happened[1][1])
    assert len(unraisable) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_where_nothing_can_be_pinned_copies_go_on():
    with pytest.warns(UserWarning, match="pins no 5000 bytes"):
        assert pinned(5000).shape == (5000,)


class TestOnGpu:
    pytestmark = on_a_gpu

    def lane(self) -> CudaLane:
        return cuda_lane(torch.empty(1, device=DEVICE))

    def test_what_lasts_is_pinned(self):
        memory = self.lane().lasting(SIZE)
        assert memory.is_pinned()
        assert memory[9:].is_pinned()

    def test_who_drops_it_while_work_is_under_way_waits_for_that(self):
        def copy(target: Tensor) -> None:
            target.copy_(source, non_blocking=True)
            done.record()

        lane, source, done = self.lane(), torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE), torch.cuda.Event()
        lane.follow()
        for _ in range(3):
            memory = lane.lasting(1 << 30)
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
            memory = self.lane().lasting(SIZE)
        real.cudaHostUnregister(registered[0])
        assert memory.is_pinned()
        assert memory.data_ptr() != registered[0]
        total: Tensor = torch.ones(5, device=DEVICE).sum()
        assert total.item() == 5
