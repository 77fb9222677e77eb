"""What `test_devices.py` says of fake devices, on real ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ckptstore
from ckptstore.state.devices.cuda import CudaLane, cuda_lane
from ckptstore.testing.equality import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

COUNT = 5_000_000
ROOMS = {"room": 8 << 30, "no room": 0, "short of room": -1}


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture(params=ROOMS)
def room(request, monkeypatch):
    """With memory to spare, and as if there was none."""
    room = ROOMS[request.param]
    monkeypatch.setattr(CudaLane, "spare_bytes", lambda _: room)
    monkeypatch.setattr(CudaLane, "is_short", lambda _: room < 0)
    return request.param


@pytest.fixture
def crossed(monkeypatch):
    """Bytes of the host that a device was to reach, as they were asked for."""
    sizes: list[int] = []

    def count(name: str) -> None:
        ask = getattr(CudaLane, name)

        def counted(lane: CudaLane, size: int) -> Tensor:
            sizes.append(size)
            found: Tensor = ask(lane, size)
            return found

        monkeypatch.setattr(CudaLane, name, counted)

    count("pinned")
    count("lasting")
    return sizes


def tensors(device: str = "cuda") -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {f"t{number}": torch.randn(COUNT, generator=made).to(device) for number in range(4)}


def on_the_host(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in state.items()}


@pytest.mark.parametrize("own_stream", [False, True])
def test_no_later_value_enters_an_earlier_step(store, room, own_stream):
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    state, expected = tensors(), {}
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for step in range(8):
            expected[step] = {name: tensor.clone() for name, tensor in state.items()}
            store.commit_async(state, step=step)
            for _ in range(20):
                for tensor in list(state.values())[step % 3 :]:
                    tensor.add_(1)
    store.close()
    torch.cuda.synchronize()
    with ckptstore.open(store.url) as again:
        for step, state in expected.items():
            assert_same(again.checkout(step), on_the_host(state))


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_what_did_not_change_does_not_cross(store, room, crossed, how):
    def commit(step: int) -> int:
        crossed.clear()
        made = getattr(store, how)(state, step=step)
        if how == "commit_async":
            made.result()
        return sum(crossed)

    state = tensors()
    commit(0)
    assert commit(1) < 100_000
    state["t1"][:9].zero_()
    assert commit(2) < 5 << 20
    assert_same(store.checkout(2), on_the_host(state))


def test_memory_that_does_not_suffice(store, monkeypatch):
    def full(lane: CudaLane, size: int) -> Tensor:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(CudaLane, "allocate", full)
    state = tensors()
    handle = store.commit_async(state, step=0)
    before = on_the_host(state)
    state["t0"].zero_()
    handle.result()
    assert_same(store.checkout(0), before)


def test_copies_are_on_the_device_once_training_was_at_work(store):
    lane, state = cuda_lane(torch.empty(1, device="cuda")), tensors()
    torch.cuda.reset_peak_memory_stats()
    assert lane.spare_bytes() == 0
    store.commit_async(state, step=0).result()
    before = torch.cuda.memory_allocated()
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert lane.spare_bytes() > 0
    store.commit_async(state, step=1).result()
    assert torch.cuda.memory_allocated() - before > 15 * COUNT
    assert_same(store.checkout(1), on_the_host(state))


def test_a_model_and_its_optimizer(store):
    def trained(seed: int) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        convolution = torch.nn.Conv2d(3, 8, 3)
        convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
        model = torch.nn.Sequential(convolution, torch.nn.Flatten(), torch.nn.Linear(1568, 10)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(3):
            model(torch.rand(8, 3, 16, 16, device="cuda")).sum().backward()
            optimizer.step()
        return model, optimizer

    model, optimizer = trained(0)
    store.commit_async({"model": model, "optimizer": optimizer}, step=0).result()
    other, its = trained(1)
    places = [parameter.data_ptr() for parameter in other.parameters()]
    store.checkout(0, into={"model": other, "optimizer": its})
    assert [parameter.data_ptr() for parameter in other.parameters()] == places
    assert_same(on_the_host(dict(other.state_dict())), on_the_host(dict(model.state_dict())))
    for one, another in zip(optimizer.state.values(), its.state.values(), strict=True):
        assert_same(on_the_host(one), on_the_host(another))


@pytest.mark.parametrize("budget", [16 << 20, 128 << 20])
def test_a_checkout_comes_behind_what_was_before_it_and_ahead_of_what_is_after(store, budget):
    state = tensors("cpu")
    store.commit(state, step=0)
    with torch.cuda.stream(torch.cuda.Stream()):
        live = {name: torch.zeros(COUNT, device="cuda") for name in state}
        for tensor in live.values():
            for _ in range(50):
                tensor.add_(1)
        store.checkout(0, into=live, memory_budget_bytes=budget)
        doubled = {name: tensor * 2 for name, tensor in live.items()}
        assert_same(on_the_host(doubled), {name: tensor * 2 for name, tensor in state.items()})


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_several_devices_and_not_the_current_one(store, room):
    state = {f"{device} {name}": it for device in (1, 0) for name, it in tensors(f"cuda:{device}").items()}
    before = on_the_host(state)
    handle = store.commit_async(state, step=0)
    for tensor in state.values():
        tensor.zero_()
    handle.result()
    assert_same(store.checkout(0), before)
    store.checkout(0, into=state)
    assert_same(on_the_host(state), before)
