"""Tensors on devices: what a step holds is what they held then, in whatever order the device works."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import ckptstore
from ckptstore import BudgetTooSmall, CommitInFlight, CorruptData, KeepLast, StateError
from ckptstore.chunkstore import jobs, windows, writer
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.state.devices.copy_targets import CopyTargets
from ckptstore.state.devices.fingerprints import fingerprints
from ckptstore.state.devices.looks import Learned, Look
from ckptstore.state.devices.shadows import Shadows
from ckptstore.state.devices.staging import _LaneStager
from ckptstore.state.devices.uploads import Uploads
from ckptstore.state.new_arrays import allocate, finish
from ckptstore.state.staging import Staged
from ckptstore.testing.equality import assert_same
from ckptstore.testing.lanes import FakeDevices, FakeLane, FakeMark
from ckptstore.testing.states import TORCH_DTYPES

CHUNK = 1 << 16
COUNT = 70_001  # in five chunks: these cannot be halved
ADAM = 4
FINGERPRINTS = 16 * 9
"""Bytes that show what changed in a tensor of COUNT floats."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about complex32


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store", chunk_bytes=CHUNK, compression="none") as opened:
        yield opened


def numbers(seed: int = 0) -> Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))


class Training:
    """Tensors on devices, trained there, and what they will hold when all of that is done."""

    def __init__(self, devices: FakeDevices) -> None:
        self._lanes = devices.lanes
        self.live = {f"t{number}": devices.put(numbers(number), number % len(self._lanes)) for number in range(4)}
        self.mirror = {name: tensor.clone() for name, tensor in self.live.items()}

    def step(self, step: int) -> None:
        for number, name in enumerate(self.live):
            if (step + number) % 3:
                self._lanes[number % len(self._lanes)].train(partial(self.live[name][9000:].add_, step))
                self.mirror[name][9000:].add_(step)


def steps_that_differ(place: Any, devices: FakeDevices, count: int = 4) -> list[int]:
    """Commits every step of a training in the background; those that hold something else than they should."""
    expected = {}
    with ckptstore.open(place, chunk_bytes=CHUNK) as store, devices:
        training = Training(devices)
        for step in range(1, count + 1):
            training.step(step)
            expected[step] = {name: tensor.clone() for name, tensor in training.mirror.items()}
            store.commit_async({"state": training.live}, step=step)
        training.step(count + 1)
        for lane in devices.lanes:
            lane.train(lambda: None)
    with ckptstore.open(place) as store:
        return [step for step, state in expected.items() if not is_same(store.checkout(step)["state"], state)]


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


ROOMS = {"room for all": 1 << 30, "room for some": 64 << 20, "no room": 0, "short of room": -1}


@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
@given(seed=st.integers(0, 10_000), room=st.sampled_from([*ROOMS]), count=st.integers(1, 3))
def test_no_later_value_enters_an_earlier_step(tmp_path_factory, seed, room, count):
    devices = FakeDevices(seed, count, ROOMS[room])
    assert steps_that_differ(tmp_path_factory.mktemp("store") / "store", devices) == []


@pytest.mark.parametrize("left_out", ["follow", "hold_back"])
def test_the_fake_device_tells_when_an_order_is_missing(tmp_path, monkeypatch, left_out):
    monkeypatch.setattr(FakeLane, left_out, lambda _: None)
    assert any(steps_that_differ(tmp_path / str(seed), FakeDevices(seed)) for seed in range(20))


def test_the_fake_device_tells_when_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ckptstore.state.devices.leaf._arrived", lambda group: [content.numpy().data for content in group.contents]
    )
    assert any(steps_that_differ(tmp_path / str(seed), FakeDevices(seed)) for seed in range(20))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_what_did_not_change_does_not_cross(store, room, how):
    def commit(step):
        before = lane.crossed
        made = getattr(store, how)({"x": tensor}, step=step)
        return (made if how == "commit" else made.result()), lane.crossed - before

    with FakeDevices(room=ROOMS[room]) as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        commit(0)
        made, crossed = commit(1)
        assert made.new_bytes < 1000
        assert crossed == FINGERPRINTS
        lane.train(tensor[CHUNK : CHUNK + 10].zero_)  # in the fifth of five chunks, from 4 * CHUNK bytes on
        made, crossed = commit(2)
        assert CHUNK // 4 < made.new_bytes < CHUNK
        assert crossed in {FINGERPRINTS, FINGERPRINTS + 4 * COUNT - 4 * CHUNK}
        assert_same(store.checkout(2)["x"], tensor)


def test_what_comes_from_devices_fills_its_packs(store, monkeypatch):
    monkeypatch.setattr(windows, "COPIES", CHUNK)
    monkeypatch.setattr(writer, "_SOON", CHUNK)
    with FakeDevices() as devices:
        store.commit({"x": devices.put(numbers())}, step=0)
    assert len(list(store._parts.storage.list("packs/"))) == 1


def test_commits_of_several_threads_do_not_meet(store, monkeypatch):
    meeting, digests = threading.Barrier(2), Learned.digests

    def digests_of_both(learned, now):
        meeting.wait()
        return digests(learned, now)

    def commit(number):
        store.commit({"x": states[number]}, step=number)

    monkeypatch.setattr(Learned, "digests", digests_of_both)
    with FakeDevices() as devices, ThreadPoolExecutor(2) as threads:
        states = [devices.put(numbers()), devices.put(torch.arange(COUNT, dtype=torch.int32).view(1, -1))]
        list(threads.map(commit, range(2)))
    for number, state in enumerate(states):
        assert_same(store.checkout(number)["x"], state)


@pytest.mark.parametrize("room", ROOMS)
def test_whoever_waited_may_change_it_from_anywhere(store, room):
    with FakeDevices(room=ROOMS[room]) as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        lane.train(partial(tensor.add_, 1))
        handle = store.commit_async({"x": tensor}, step=0)
        handle.wait_staged()
        tensor.zero_()
        handle.result()
    assert torch.equal(store.checkout(0)["x"], numbers() + 1)


def test_memory_is_not_given_to_others_until_the_device_has_read_it(store, monkeypatch):
    come = threading.Event()
    monkeypatch.setattr(FakeMark, "wait", lambda _: come.wait())
    with FakeDevices() as devices, running_at_once(monkeypatch):
        part = devices.put(numbers())[9:]
        kept = weakref.ref(part)
        handle = store.commit_async({"x": part}, step=0)
        del part
        still = kept() is not None
        come.set()
        handle.result()
        assert still
        assert kept() is None


def test_a_commit_that_failed_before_it_began_keeps_no_memory(store, monkeypatch):
    def fail(_: Staged) -> None:
        raise StateError("odd")

    monkeypatch.setattr(Staged, "prepare", fail)
    with FakeDevices() as devices, running_at_once(monkeypatch):
        part = devices.put(numbers())[9:]
        kept = weakref.ref(part)
        handle = store.commit_async({"x": part}, step=0)
        del part
        with pytest.raises(StateError, match="odd"):
            handle.result()
        assert kept() is None


def test_a_commit_that_another_rank_refuses_keeps_no_memory(store, monkeypatch):
    def refuse(_: Ranks, prepare: Callable[[], object], __: object) -> None:
        prepare()
        raise CommitInFlight("another rank has one")

    with FakeDevices() as devices, running_at_once(monkeypatch):
        part = devices.put(numbers())[9:]
        kept = weakref.ref(part)
        with monkeypatch.context() as patched, pytest.raises(CommitInFlight):
            patched.setattr(Ranks, "agree", refuse)
            store.commit_async({"x": part}, step=0)
        del part
        assert kept() is None


def test_the_device_is_told_what_it_copies_to_the_host(store, monkeypatch):
    with FakeDevices(room=0) as devices, running_at_once(monkeypatch) as uses:
        tensor = devices.put(numbers())
        store.commit_async({"x": tensor}, step=0).result()
    assert [used.data_ptr() for used in uses] == [tensor.data_ptr()]


@contextmanager
def running_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """As CUDA does what it is given, of which it keeps nothing. Gives what it was to keep."""
    kept: list[Tensor] = []
    submit = FakeLane.submit

    def submit_and_run(lane: FakeLane, work: Any, uses: Any = ()) -> None:
        kept.extend(uses)
        submit(lane, work)
        lane.synchronize()

    monkeypatch.setattr(FakeLane, "submit", submit_and_run)
    yield kept


def test_what_is_brought_into_order_takes_no_memory_once_it_is_copied(store, monkeypatch):
    made: list[weakref.ref[Tensor]] = []
    left: list[int] = []
    bring = Look.bring

    def ordered(tensor: Tensor) -> Tensor:
        made.append(weakref.ref(row := tensor.contiguous()))
        return row

    def brought(look: Look) -> None:
        left.append(sum(row() is not None for row in made))
        bring(look)

    monkeypatch.setattr("ckptstore.state.devices.staging.as_row_major", ordered)
    monkeypatch.setattr(Look, "bring", brought)
    with FakeDevices() as devices, running_at_once(monkeypatch):
        state = {str(at): devices.put(torch.rand(30, 40).t()) for at in range(3)}
        store.commit_async(state, step=0).result()
        assert_same(store.checkout(0), state)
    assert (len(made), left) == (3, [0])


def test_what_is_refused_while_a_graph_is_captured_changes_nothing(store, monkeypatch):
    def captured(_: FakeLane) -> None:
        raise StateError("a CUDA graph is being captured")

    def unwanted(_: torch.device) -> None:
        pytest.fail("compiling would spoil what is captured")

    def observed(tensors: list[Tensor], copies: CopyTargets) -> Tensor:
        asked.append(copies.firsts)
        return fingerprints(tensors, copies)

    asked: list[Any] = []
    with FakeDevices() as devices:
        state = {"x": devices.put(numbers())}
        with monkeypatch.context() as capturing, pytest.raises(StateError):
            capturing.setattr(FakeLane, "follow", captured)
            store.commit_async(state, step=0)
        assert devices.lanes[0].room == 1 << 30
        store.commit_async(state, step=1).result()
        with monkeypatch.context() as capturing, pytest.raises(StateError):
            capturing.setattr(FakeLane, "follow", captured)
            capturing.setattr("ckptstore.state.devices.staging.prepare", unwanted)
            store.commit_async(state, step=2)
        with monkeypatch.context() as capturing, pytest.raises(StateError):
            capturing.setattr(FakeLane, "follow", captured)
            capturing.setattr("ckptstore.state.devices.staging.prepare", unwanted)
            store.commit(state, step=2)
        monkeypatch.setattr("ckptstore.state.devices.staging.fingerprints", observed)
        store.commit_async(state, step=3).result()
    assert asked == [[0]]


def test_what_gc_took_is_copied_again(store):
    with FakeDevices() as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        for step, how in enumerate([store.commit, store.commit_async, store.commit]):
            crossed = lane.crossed
            how({"x": tensor}, step=step)
            store._background.land()
            assert lane.crossed - crossed == FINGERPRINTS + 4 * COUNT
            store.commit({"y": numbers(1)}, step=50 + step)
            store.gc(KeepLast(1), grace=0, most=1)
            assert store.steps() == [50 + step]
        lane.train(lambda: tensor.add_(1))
        store.commit_async({"x": tensor}, step=100).result()
        assert_same(store.checkout(100)["x"], numbers() + 1)


def test_training_does_not_wait_for_a_kernel_that_is_compiled(store, monkeypatch):
    def prepared(device: torch.device) -> None:
        assert gate.wait(60)
        happened.append("prepared")
        raise UserWarning("Triton does not work")  # which may be an error, with which a commit has nothing to do

    happened, gate = list[str](), threading.Event()
    monkeypatch.setattr("ckptstore.state.devices.staging.prepare", prepared)
    with FakeDevices() as devices:
        handle = store.commit_async({"x": devices.put(numbers())}, step=0)
        happened.append("returned")
        gate.set()
        handle.result()
        assert happened == ["returned", "prepared"]


def test_a_first_call_gives_the_device_nothing_but_copies(store, monkeypatch):
    def observed(tensors: list[Tensor], copies: CopyTargets | None = None) -> Tensor:
        happened.append("observed")
        assert gate.wait(60)
        return fingerprints(tensors, copies)

    happened, gate = list[str](), threading.Event()
    monkeypatch.setattr("ckptstore.state.devices.staging.fingerprints", observed)
    with FakeDevices() as devices, running_at_once(monkeypatch):
        state = {"x": devices.put(numbers())}
        handle = store.commit_async(state, step=0)
        handle.wait_staged()
        happened.append("returned")
        gate.set()
        assert handle.result().new_bytes > 4 * COUNT
        assert sorted(happened) == ["observed", "returned"]
        assert store.commit_async(state, step=1).result().new_bytes < 1000


def test_what_a_device_cannot_tell_later_for_want_of_memory_is_new_next_time(store, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    with FakeDevices() as devices:
        lane, state = devices.lanes[0], {"x": devices.put(numbers())}
        with monkeypatch.context() as patched:
            patched.setattr("ckptstore.state.devices.staging._compute_fingerprints", full)
            store.commit_async(state, step=0).result()
        crossed = []
        for step in range(1, 4):
            lane.train(state["x"][step].zero_)
            before, expected = lane.crossed, numbers()
            expected[1 : step + 1] = 0
            store.commit_async(state, step=step).result()
            crossed.append(lane.crossed - before)
            assert_same(store.checkout(step)["x"], expected)
    assert crossed == [FINGERPRINTS + 4 * COUNT, FINGERPRINTS + CHUNK, FINGERPRINTS + CHUNK]


def test_what_was_copied_for_a_commit_that_looked_at_nothing_is_copied_again(store, monkeypatch):
    def fail(_: Staged) -> None:
        raise StateError("odd")

    with FakeDevices() as devices:
        lane, state = devices.lanes[0], {"x": devices.put(numbers())}
        with monkeypatch.context() as patched, pytest.raises(StateError, match="odd"):
            patched.setattr(Staged, "prepare", fail)
            store.commit_async(state, step=0).result()
        lane.train(state["x"][:9].zero_)
        store.commit_async(state, step=1).result()
        expected = numbers()
        expected[:9] = 0
        assert_same(store.checkout(1)["x"], expected)


def test_who_waits_for_commits_waits_for_the_kernel_at_the_second_one(store, monkeypatch):
    happened = list[str]()
    monkeypatch.setattr("ckptstore.state.devices.staging.prepare", lambda _: happened.append("prepared"))
    with FakeDevices() as devices:
        for step in range(2):
            store.commit({"x": devices.put(numbers(step))}, step=step)
            assert len(happened) == step


def test_a_device_without_memory_for_torchs_operations_gets_the_kernel_all_the_same(store, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    happened = list[str]()
    monkeypatch.setattr("ckptstore.state.devices.staging.prepare", lambda _: happened.append("prepared"))
    monkeypatch.setattr(FakeLane, "submit", full)
    with FakeDevices() as devices:
        for step in range(2):
            store.commit({"x": devices.put(numbers(step))}, step=step)
            assert_same(store.checkout(step)["x"], numbers(step))
    assert happened == ["prepared"]


def test_a_device_that_has_room_in_pieces_only(store):
    with FakeDevices() as devices:
        devices.lanes[0].broken = True
        state = {"x": devices.put(numbers()), "small": devices.put(torch.arange(40))}
        store.commit_async(state, step=0).result()
        assert_same(store.checkout(0), state)


def test_room_in_pieces_is_not_looked_for_again(store, monkeypatch):
    asked = []
    allocate = FakeLane.allocate

    def counted(lane: FakeLane, size: int) -> Tensor:
        asked.append(size)
        return allocate(lane, size)

    monkeypatch.setattr(FakeLane, "allocate", counted)
    with FakeDevices() as devices:
        devices.lanes[0].broken = True
        state = {str(at): devices.put(numbers(at)) for at in range(5)}
        for step in range(3):
            store.commit_async(state, step=step).result()
    assert asked == sorted(set(asked), reverse=True)  # each size once
    assert asked[-1] == 4 * COUNT


def test_as_much_is_kept_on_the_device_as_there_is_room_for():
    lane = FakeLane(random.Random(0), room=5 << 19)
    shadows, sizes = Shadows(lane), dict.fromkeys("abcd", 1 << 20)
    for room, on_host in [
        (None, [False, False, True, True]),
        (None, [False, False, True, True]),
        (3 << 20, [False] * 4),
        (-1, [True] * 4),
        (5 << 20, [False] * 4),
    ]:
        lane.room = lane.room if room is None else room
        found, _ = shadows.take(sizes)
        assert [found[path].on_host for path in sizes] == on_host


def test_copies_move_to_the_device_once_there_is_room(store):
    with FakeDevices(room=0) as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        for step, (room, crossed) in enumerate([(0, 4 * COUNT), (1 << 30, 0), (1 << 30, 0), (-1, 4 * COUNT)]):
            before, lane.room = lane.crossed, room
            store.commit_async({"x": tensor}, step=step).result()
            assert 0 <= lane.crossed - before - FINGERPRINTS - crossed <= (512 if crossed else 0)
        lane.room = 1 << 30
        for step in (10, 11):
            lane.train(lambda: tensor[:9].mul_(2))
            store.commit_async({"x": tensor}, step=step)
            lane.train(lambda: tensor[:9].mul_(2))
            store._background.land()
            lane.synchronize()
            tensor[:9].div_(2)
            assert_same(store.checkout(step)["x"], tensor)


def test_memory_of_the_host_is_taken_once_for_many(store, monkeypatch):
    asked = []
    pinned = FakeLane.pinned

    def counted(lane: FakeLane, size: int) -> Tensor:
        asked.append(size)
        return pinned(lane, size)

    monkeypatch.setattr(FakeLane, "pinned", counted)
    with FakeDevices(room=0) as devices:
        lane, large = devices.lanes[0], {str(at): devices.put(torch.rand(1 << 20)) for at in range(3)}
        store.commit_async(large, step=0).result()
        assert lane.crossed < 1.01 * 3 * large["0"].nbytes
        assert len(asked) == 2  # of all tensors, and of fingerprints
        assert lane.lasted == asked[0] >= 3 * large["0"].nbytes
        assert_same(store.checkout(0), large)


@pytest.mark.parametrize("how", ["commit", "commit_async"])
@pytest.mark.parametrize("sizes", [[1] * 50, [3, 1, 7000, 2, 300_000, 1, 5, 40_000] * 2])
def test_small_tensors_cross_together(store, monkeypatch, how, sizes):
    asked = []
    pinned = FakeLane.pinned

    def counted(lane: FakeLane, size: int) -> Tensor:
        asked.append(size)
        return pinned(lane, size)

    monkeypatch.setattr(FakeLane, "pinned", counted)
    with FakeDevices(3, 2) as devices:
        state = {str(at): devices.put(torch.randn(size), at == 9) for at, size in enumerate(sizes)}
        made = getattr(store, how)(state, step=0)
        if how == "commit_async":
            made.result()
        assert len(asked) < (8 if len(sizes) == 50 else len(sizes))
        assert_same(store.checkout(0), state)


@pytest.mark.parametrize("how", ["commit", "commit_async"])
@pytest.mark.parametrize("full", [[0], [1], [0, 1]])
def test_a_device_without_memory_to_look_at_its_tensors(store, monkeypatch, how, full):
    def commit(step: int) -> Any:
        made = getattr(store, how)(state, step=step)
        expected = copy.deepcopy(state)
        if how == "commit_async":
            for lane in devices.lanes:
                lane.train(partial(change, lane))
            made = made.result()
        assert_same(store.checkout(step), expected)
        return made

    def change(lane: FakeLane) -> None:
        for tensor in state.values():
            if devices._lane(tensor) is lane:
                tensor.detach().add_(1)

    begin = _LaneStager.begin

    def begun(stager: _LaneStager, tensors: Any, *, apart: bool) -> Any:
        if stager._lane in (devices.lanes[number] for number in full):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return begin(stager, tensors, apart=apart)

    with FakeDevices(5, 2) as devices:
        state = {
            "turned": devices.put(torch.rand(200, 300).t()),
            "large": devices.put(numbers()),
            "weight": devices.put(torch.nn.Parameter(numbers(1)), 1),
            "tracked": devices.put(torch.rand(300, requires_grad=True), 1),
        }
        for number, broken in enumerate([False, True, True, False]):
            for lane in devices.lanes:
                lane.synchronize()
            with monkeypatch.context() as patched:
                if broken:
                    patched.setattr(_LaneStager, "begin", begun)
                with pytest.warns(UserWarning, match="no memory to tell") if broken else nullcontext():
                    commit(number)
        assert how == "commit_async" or commit(9).new_bytes < 1000


def test_a_first_commit_in_inference_mode_spoils_no_later_one(store):
    with FakeDevices() as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        with torch.inference_mode():
            store.commit_async({"x": tensor}, step=0).result()
        lane.train(lambda: tensor.add_(1))
        store.commit_async({"x": tensor}, step=1).result()
        assert_same(store.checkout(1)["x"], tensor)
        assert_same(store.checkout(0)["x"], numbers())


@pytest.mark.usefixtures("interruptible")
def test_a_checkout_that_is_interrupted_sends_little_more(store, monkeypatch):
    monkeypatch.setattr(jobs, "BATCH_BYTES", CHUNK)
    saved = numbers().repeat(90)
    store.commit({"x": saved}, step=0)
    sent: list[int] = []
    send = Uploads.send

    def send_slowly(uploads: Uploads, target: Tensor, data: memoryview) -> None:
        sent.append(len(data))
        if len(sent) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        send(uploads, target, data)

    monkeypatch.setattr(Uploads, "send", send_slowly)
    with FakeDevices() as devices, pytest.raises(KeyboardInterrupt):
        store.checkout(0, into={"x": devices.put(torch.zeros_like(saved))})
    assert sum(sent) < saved.nbytes / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("budget", [None, 4 * CHUNK])
@pytest.mark.parametrize("within", [False, True])
def test_tensors_of_inference_mode_take_a_checkout(store, within, budget, dtype):
    store.commit({"x": numbers(), "y": torch.arange(3)}, step=0)
    with FakeDevices() as devices:
        with torch.inference_mode():
            target = {"x": devices.put(torch.zeros(COUNT, dtype=dtype)), "y": devices.put(torch.zeros(3, dtype=dtype))}
        with torch.inference_mode(mode=within):
            store.checkout(0, into=target, allow_cast=True, memory_budget_bytes=budget)
        assert_same(target, {"x": numbers().to(dtype), "y": torch.arange(3).to(dtype)})


@pytest.mark.parametrize("there", [False, True])
def test_the_default_device_of_torch_does_not_matter(store, there):
    state = forms()
    with FakeDevices() as devices:
        if there:
            state = {name: devices.put(tensor) for name, tensor in state.items()}
        into = {name: devices.put(torch.zeros_like(state[name])) for name in ("large", "transposed")}
        with torch.device("meta"):
            store.commit(state, step=0)
            store.commit_async(state, step=1).result()
            found = store.checkout(1)
            store.checkout(1, into=into, paths=[*into])
        assert_same(found, state)
        assert_same(into, {name: state[name] for name in into})
        assert store.read(0, "large", index=slice(5)).tolist() == numbers()[:5].tolist()


@pytest.mark.parametrize("room", ["room for all", "no room"])
def test_a_commit_at_once_costs_the_next_no_copies(store, room):
    with FakeDevices(room=ROOMS[room]) as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        given = []
        for step, how in enumerate([store.commit_async, store.commit_async, store.commit, store.commit_async]):
            before = lane.side.given
            how({"x": tensor}, step=step)
            store._background.land()
            given.append(lane.side.given - before)
        assert given[3] == given[1] < given[0]


@pytest.mark.parametrize("seed", range(8))
def test_whoever_waited_for_a_commit_that_failed_spoils_no_later_one(store, monkeypatch, seed):
    def fail(*_: Any) -> None:
        raise ckptstore.StorageFull("no space")

    with FakeDevices(seed) as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        with monkeypatch.context() as broken:
            broken.setattr("ckptstore.operations.committing.commit.commit", fail)
            handle = store.commit_async({"x": tensor}, step=0)
            with pytest.raises(ckptstore.StorageFull):
                handle.result()
        handle.wait_staged()
        tensor.zero_()
        lane.synchronize()
        tensor.copy_(numbers())
        store.commit_async({"x": tensor}, step=1).result()
    assert torch.equal(store.checkout(1)["x"], numbers())


def test_a_commit_that_is_interrupted_while_it_stages_spoils_no_later_one(store, monkeypatch):
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with FakeDevices() as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        store.commit_async({"x": tensor}, step=0).result()
        lane.room = -1
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
            broken.setattr("ckptstore.state.devices.staging._Begun.missing", interrupt)
            store.commit_async({"x": tensor}, step=1)
        store.delete(0)
        store.gc(KeepLast(1), grace=0, most=1)
        store.commit_async({"x": tensor}, step=2).result()
    assert torch.equal(store.checkout(2)["x"], numbers())


def test_shadows_are_given_up_when_room_gets_short(store):
    with FakeDevices() as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        for step, room in enumerate([1 << 30, -1, 1 << 30]):
            lane.room = room
            lane.train(lambda: tensor.add_(1))
            store.commit_async({"x": tensor}, step=step).result()
            assert_same(store.checkout(step)["x"], tensor)


def test_a_device_that_is_short_of_memory_gets_all_of_it_back(store, monkeypatch):
    _, freed = watching_memory(monkeypatch)
    with FakeDevices() as devices:
        lane, state = devices.lanes[0], {str(size): devices.put(torch.rand(size)) for size in (7, 1000, 90_000)}
        before = lane.room
        store.commit_async(state, step=0).result()
        taken, lane.room = before - lane.room, -1
        store.commit_async(state, step=1).result()
        assert taken == sum(freed) > 4 * 91_007


def watching_memory(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """The bytes that devices give from here on, and those that they got back, without Python's collector."""
    given, freed, allocate = list[int](), list[int](), FakeLane.allocate

    def watched(lane: FakeLane, size: int) -> Tensor:
        memory = allocate(lane, size).numpy()
        given.append(size)
        weakref.finalize(memory, freed.append, size)
        return torch.from_numpy(memory)

    monkeypatch.setattr(FakeLane, "allocate", watched)
    return given, freed


@pytest.mark.parametrize(
    "what", ["ckptstore.state.staging.Staged.prepare", "ckptstore.state.devices.staging._compute_fingerprints"]
)
def test_a_first_commit_that_failed_leaves_no_memory_to_the_collector(store, monkeypatch, what):
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    given, freed = watching_memory(monkeypatch)
    with FakeDevices() as devices, monkeypatch.context() as patched:
        patched.setattr(what, fail)
        gc.disable()
        try:
            with suppress(torch.OutOfMemoryError):
                store.commit_async({"x": devices.put(numbers())}, step=0).result()
            store.close()
            assert given == freed != []
        finally:
            gc.enable()


def test_a_device_whose_free_memory_lies_in_pieces_gives_smaller_ones(store, monkeypatch):
    allocate = FakeLane.allocate

    def in_pieces(lane: FakeLane, size: int) -> Tensor:
        if size > 400_000:
            raise torch.OutOfMemoryError("in pieces")
        return allocate(lane, size)

    monkeypatch.setattr(FakeLane, "allocate", in_pieces)
    with FakeDevices() as devices:
        state = {str(at): devices.put(numbers(at)) for at in range(9)}
        store.commit_async(state, step=0).result()
        assert devices.lanes[0].lasted == 0
        assert_same(store.checkout(0), state)


def test_what_shares_memory_of_a_device_gives_it_back_with_the_rest(store, monkeypatch):
    given, freed = watching_memory(monkeypatch)
    with FakeDevices() as devices:
        state = {str(at): devices.put(numbers(at)) for at in range(4)}
        store.commit_async(state, step=0).result()
        few = {"1": state["1"]}
        devices.lanes[0].train(few["1"].zero_)
        store.commit_async(few, step=1).result()
        assert sum(given) - sum(freed) < 4 * COUNT + 1000
        assert store.commit_async(few, step=2).result().new_bytes < 1000
        assert_same(store.checkout(1), {"1": torch.zeros(COUNT)})


def forms() -> dict[str, Tensor]:
    return {
        "transposed": torch.rand(200, 300).t(),
        "view": torch.rand(300, 200)[::2, 1::3],
        "channels last": torch.rand(2, 3, 40, 50).to(memory_format=torch.channels_last),
        "expanded": torch.rand(60, 1).expand(60, 50),
        "conj": torch.rand(900, dtype=torch.complex64).conj(),
        "negated": torch.rand(900, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(torch.rand(5000)),
        "tracked": torch.rand(5000, requires_grad=True),
        "odd place": torch.arange(100, dtype=torch.uint8)[3:],
        "tiny": torch.tensor(1.5),
        "one of many": torch.arange(50.0)[::50],
        "one complex of many": torch.arange(50.0).to(torch.complex128)[::50].view(1, 1),
        "empty": torch.empty(0, 3),
        "large": numbers(),
    } | {str(dtype): torch.arange(640).to(torch.uint8).view(dtype) for dtype in DTYPES}


DTYPES = [dtype for dtype in TORCH_DTYPES if dtype != torch.bool]


@pytest.mark.parametrize("room", ROOMS)
def test_every_form_comes_back(store, room):
    with FakeDevices(room=ROOMS[room]) as devices:
        state = {name: devices.put(tensor) for name, tensor in forms().items()}
        state["tied"] = state["large"]
        store.commit_async(state, step=0).result()
        made = store.commit(state, step=0)
        assert made == store.find(0)
        assert_same(store.checkout(0), state)
        small = {name: tensor for name, tensor in state.items() if name in {"tiny", "large"}}
        store.commit_async(small, step=1).result()
        assert_same(store.checkout(1), small)
        store.commit_async(state, step=2).result()
        assert store.find(2).logical_bytes == made.logical_bytes
        assert_same(store.checkout(2), state)


def test_a_store_on_devices_holds_what_one_on_the_host_does(store):
    state = forms()
    made = store.commit(state, step=0)
    with FakeDevices() as devices:
        there = {name: devices.put(tensor) for name, tensor in state.items()}
        assert store.commit_async(there, step=0).result() == made


def test_a_commit_that_failed_leaves_nothing_wrong_behind(store, monkeypatch):
    with FakeDevices() as devices:
        lane, tensor = devices.lanes[0], devices.put(numbers())
        store.commit_async({"x": tensor}, step=0).result()
        lane.train(tensor[:9].zero_)
        with monkeypatch.context() as broken:
            broken.setattr(type(store._parts.storage), "put", lambda *_: (_ for _ in ()).throw(KeyError("odd")))
            with pytest.raises(KeyError):
                store.commit_async({"x": tensor}, step=1).result()
        store.commit_async({"x": tensor}, step=2).result()
        assert_same(store.checkout(2)["x"], tensor)


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_steps_of_adam_are_known_there_too(tmp_path, how):
    model = torch.nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters())
    with ckptstore.open(tmp_path / "store", compression="best") as store, FakeDevices() as devices:
        for step in range(3):
            for parameter in model.parameters():
                devices.put(parameter.data)
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            for kept in optimizer.state.values():
                for tensor in kept.values():
                    devices.put(tensor)
            getattr(store, how)({"model": model, "optimizer": optimizer}, step=step)
            store._background.settle()  # the next step is of the host, in none of the device's queues
        store._background.land()
        packs = store._parts.catalog.packs()
        codecs = [chunk.codec for pack in packs for chunk in store._parts.catalog.pack_chunks(pack.name)]
        assert codecs.count(ADAM) == 1  # the weight, which leaves no room for its second moment
        found = store.checkout(2)
        assert_same(dict(found["model"]), dict(model.state_dict()))
        assert_same(found["optimizer"]["state"], optimizer.state_dict()["state"])


# processes


def _tell_freed(freed: list[int], said: Any) -> None:
    gc.collect()
    said.put(list(freed))


class Event:
    """A mark that can be waited for."""

    def __init__(self, mark: Any) -> None:
        self.wait = mark.wait


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("when", ["under way", "over"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_frees_nothing_of_a_device(tmp_path, monkeypatch, room, when):
    """There, torch would call a driver that is in no state to answer."""
    freed: list[object] = []

    def watched(original):
        def take(lane: FakeLane, *size: int) -> Any:
            made = original(lane, *size)
            memory = np.empty(size, np.uint8) if size else Event(made)
            weakref.finalize(memory, freed.append, size or "event")
            return torch.from_numpy(memory) if size else memory

        return take

    def wait(*_: Any) -> None:
        under_way.set()
        may_go_on.wait(60)
        raise ckptstore.StorageFull("no space")

    for name in ("pinned", "allocate", "mark"):
        monkeypatch.setattr(FakeLane, name, watched(getattr(FakeLane, name)))
    under_way, may_go_on = threading.Event(), threading.Event()
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()
    with FakeDevices(room=ROOMS[room]) as devices, ckptstore.open(tmp_path / "store", chunk_bytes=CHUNK) as store:
        state = {"x": devices.put(numbers())}
        store.commit_async(state, step=0).result()
        if when == "under way":
            monkeypatch.setattr("ckptstore.operations.committing.commit.commit", wait)
            store.commit_async(state, step=1)
            assert under_way.wait(60)
        gc.collect()
        freed.clear()
        child = context.Process(target=_tell_freed, args=(freed, said))
        child.start()
        child.join(60)
        may_go_on.set()
        assert child.exitcode == 0
        assert said.get() == []
        with pytest.raises(ckptstore.StorageFull) if when == "under way" else nullcontext():
            store._background.land()


# back to devices


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 3), budget=st.sampled_from([1 << 19, 1 << 20, 1 << 27]))
def test_a_checkout_comes_behind_what_was_before_it_and_ahead_of_what_is_after(store, seed, count, budget):
    expected = {f"t{number}": numbers(number) for number in range(4)}
    step = (store.latest() or 0) + 1
    store.commit(expected, step=step)
    with FakeDevices(seed, count) as devices:
        lanes = [devices.lanes[number % count] for number in range(4)]
        live = {name: devices.put(torch.zeros(COUNT), at % count) for at, name in enumerate(expected)}
        for lane, tensor in zip(lanes, live.values(), strict=True):
            lane.train(partial(tensor.fill_, 7))
        store.checkout(step, into=live, memory_budget_bytes=budget)
        for lane, tensor in zip(lanes, live.values(), strict=True):
            lane.train(partial(tensor.mul_, 2))
            lane.synchronize()
    assert_same(live, {name: tensor * 2 for name, tensor in expected.items()})


def test_every_form_goes_back(store):
    state = {name: tensor for name, tensor in forms().items() if name != "expanded"}
    store.commit(state, step=0)
    with FakeDevices() as devices:
        made: dict[str, Any] = {
            name: finish(name, allocate(name, entry), entry) for name, entry in store.manifest(0).items()
        }
        live = {name: devices.put(tensor) for name, tensor in made.items()}
        store.checkout(0, into=live)
        assert devices.lanes[0].side.given >= len(live)
    assert_same(live, store.checkout(0))


@pytest.mark.parametrize("compression", ["none", "auto"])
def test_chunks_are_read_and_decoded_where_the_device_fetches_them_and_nowhere_twice(tmp_path, compression):
    state = {f"t{number}": numbers(number) * 0.02 for number in range(8)}
    with ckptstore.open(tmp_path / "other", chunk_bytes=CHUNK, compression=compression) as store:
        store.commit(state, step=0)
        with FakeDevices() as devices:
            live = {name: devices.put(torch.zeros_like(tensor)) for name, tensor in state.items()}
            store.checkout(0, into=live, memory_budget_bytes=8 * CHUNK)
            assert 0 < devices.lanes[0].crossed < sum(tensor.nbytes for tensor in live.values()) / 2
        assert_same(live, state)


@pytest.mark.parametrize("compression", ["none", "auto"])
def test_what_was_sealed_goes_to_a_device(tmp_path, compression):
    key = tmp_path / "key"
    key.write_text("correct horse")
    with ckptstore.open(
        tmp_path / "sealed", chunk_bytes=CHUNK, compression=compression, encrypt=True, key_file=key
    ) as store:
        store.commit({"x": numbers()}, step=0)
        with FakeDevices() as devices, warnings.catch_warnings():
            warnings.simplefilter("error")
            live = {"x": devices.put(torch.zeros(COUNT))}
            with pytest.raises(BudgetTooSmall, match=f"beside {CHUNK} that"):
                store.checkout(0, into=live, memory_budget_bytes=2 * CHUNK)
            store.checkout(0, into=live)
        assert_same(live["x"], numbers())


def test_a_part_is_read_into_a_device(store):
    store.commit({"x": numbers()[:70_000].view(700, 100)}, step=0)
    with FakeDevices() as devices:
        out = devices.put(torch.zeros(90, 50))
        store.read(0, "x", index=(slice(100, 190), slice(50)), out=out)
    assert torch.equal(out, numbers()[:70_000].view(700, 100)[100:190, :50])


def test_a_budget_that_does_not_do_is_reported(store):
    store.commit({"x": numbers()}, step=0)
    with FakeDevices() as devices:
        live = {"x": devices.put(torch.zeros(COUNT))}
        with pytest.raises(BudgetTooSmall, match=str(CHUNK)):
            store.checkout(0, into=live, memory_budget_bytes=CHUNK // 2)
        assert not live["x"].any()
        store.checkout(0, into=live, memory_budget_bytes=CHUNK)
        assert torch.equal(live["x"], numbers())


def test_scalars_on_a_device_take_nothing_of_a_budget(store):
    state = {"x": numbers(), "steps": [torch.tensor(float(number)) for number in range(3)]}
    store.commit(state, step=0)
    with FakeDevices() as devices:
        live = {"x": devices.put(torch.zeros(COUNT)), "steps": [devices.put(torch.zeros(())) for _ in range(3)]}
        store.checkout(0, into=live, memory_budget_bytes=CHUNK)
    assert_same(live, state)


def test_what_is_a_little_larger_is_read_to_memory_that_was_pinned_before(store):
    state = {f"t{number}": numbers(number)[: 9000 + 100 * number].clone() for number in range(20)}
    store.commit(state, step=0)
    with FakeDevices() as devices:
        live = {name: devices.put(torch.zeros_like(tensor)) for name, tensor in state.items()}
        store.checkout(0, into=live, memory_budget_bytes=CHUNK)
        assert devices.lanes[0].crossed <= 2 * CHUNK
    assert_same(live, state)


def test_what_does_not_lie_as_it_was_stored_takes_more_of_a_budget(store):
    store.commit({"x": numbers()}, step=0)
    with FakeDevices() as devices:
        live = {"x": devices.put(torch.zeros(2 * COUNT))[::2]}
        for budget in (CHUNK // 2, CHUNK):
            with pytest.raises(BudgetTooSmall, match=str(CHUNK // 2) if budget < CHUNK else f"beside {CHUNK} that"):
                store.checkout(0, into=live, memory_budget_bytes=budget)
        assert not live["x"].any()
        store.checkout(0, into=live, memory_budget_bytes=3 * CHUNK)
        assert torch.equal(live["x"], numbers())


def test_damage_leaves_no_copies_under_way(store, tmp_path):
    store.commit({"x": numbers()}, step=0)
    for pack in (tmp_path / "store" / "packs").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[4 * COUNT - 100] ^= 1
        pack.write_bytes(data)
    with FakeDevices() as devices:
        lane, live = devices.lanes[0], {"x": devices.put(torch.zeros(COUNT))}
        with pytest.raises(CorruptData):
            store.checkout(0, into=live)
        lane.train(live["x"].zero_)
        lane.synchronize()
        assert not live["x"].any()
