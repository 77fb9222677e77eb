"""Commits in the background: what was handed over is what is stored, and no error is lost."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ckptstore
from ckptstore import InvalidArgument, StepExists, StorageFull, UnsupportedLeaf
from ckptstore.chunkstore import ChunkStore
from ckptstore.opening import open_parts
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import STATES, Frozen, Point, record

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors


class Gated(Intercepted):
    """A storage that puts packs only when it may, and fails with `error` if that is set."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.gate, self.reached = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def intercept(self, verb: str, key: str, operation: Callable[[], Any]) -> Any:
        if verb == "put" and key.startswith("packs/"):
            self.reached.set()
            assert self.gate.wait(60)
            if self.error is not None:
                raise self.error
        return operation()


@pytest.fixture
def gated(tmp_path):
    """A store, and the gate of its storage."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096):
        pass
    parts = open_parts(
        tmp_path / "store",
        catalog=None,
        create=False,
        read_only=False,
        digest="xxh3_128",
        chunk_bytes=4096,
        storage_options=None,
    )
    gate = Gated(parts.storage)
    store = Store(ChunkStore(gate, parts.catalog, parts.config), "main")
    yield store, gate
    gate.gate.set()
    store._background._flight = None
    store.close()


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return {"w": torch.randn(5000, generator=torch.Generator().manual_seed(seed))}


# staging

dense = torch.eye(60)
STRUCTURED = np.dtype({"names": ["x", "y"], "formats": ["<f4", "<i2"], "offsets": [2, 8], "itemsize": 16})


def _set(place: Any, key: Any, value: Any) -> None:
    place[key] = value


MUTATIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda: torch.ones(5000), lambda it: it.add_(1)),
    "small tensor": (lambda: torch.ones(2), lambda it: it.add_(1)),
    "0-d tensor": (lambda: torch.tensor(1.0), lambda it: it.add_(1)),
    "transposed": (lambda: torch.rand(80, 60).t(), lambda it: it.add_(1)),
    "view": (lambda: torch.rand(80, 60)[::2, 1::3], lambda it: it.add_(1)),
    "expanded": (lambda: torch.rand(60, 1).expand(60, 50), lambda it: it[:, 0].add_(1)),
    "conj": (lambda: torch.rand(900, dtype=torch.complex64).conj(), lambda it: it.add_(1)),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(5000)), lambda it: it.data.add_(1)),
    "float8": (lambda: torch.ones(5000).to(torch.float8_e5m2), lambda it: it.view(torch.uint8).add_(1)),
    "sparse COO": (dense.to_sparse, lambda it: it._values().add_(1)),
    "sparse CSR": (dense.to_sparse_csr, lambda it: it.values().add_(1)),
    "quantised": (lambda: torch.quantize_per_tensor(dense, 0.1, 3, torch.qint8), lambda it: it.fill_(0.5)),
    "numpy": (lambda: np.ones(5000), lambda it: it.fill(2)),
    "numpy transposed": (lambda: np.ones((50, 60)).T, lambda it: it.fill(2)),
    "numpy with gaps": (lambda: np.frombuffer(bytearray(range(16)) * 300, STRUCTURED), lambda it: _set(it["x"], 0, 5)),
    "dict": (lambda: {"a": 1, "b": {"c": [1]}}, lambda it: it["b"].update(c=2)),
    "dict's keys": (lambda: {"a": torch.ones(9)}, lambda it: it.pop("a")),
    "OrderedDict": (lambda: OrderedDict(a=1), lambda it: it.move_to_end("a") or it.update(b=2)),
    "defaultdict": (lambda: defaultdict(list, a=[{}]), lambda it: it["a"][0].update(x=1)),
    "list": (lambda: [1, 2, 3], lambda it: it.append(4)),
    "long list": (lambda: list(range(5000)), lambda it: _set(it, 0, 9)),
    "list of tensors": (lambda: [torch.ones(9), {}], lambda it: it.pop()),
    "tuple": (lambda: ([1], torch.ones(900)), lambda it: it[0].append(it[1].add_(1))),
    "set": (lambda: {1, 2}, lambda it: it.add(3)),
    "deque": (lambda: deque([1, {}]), lambda it: it.append(3)),
    "namedtuple": (lambda: Point({"a": 1}, torch.ones(9)), lambda it: it.y.add_(1)),
    "dataclass": (lambda: record(1, {}), lambda it: setattr(it, "a", 2)),
    "frozen dataclass": (lambda: Frozen([{}]), lambda it: it.a[0].update(x=1)),
    "bytearray": (lambda: bytearray(9000), lambda it: _set(it, 0, 1)),
    "Generator": (lambda: torch.Generator().manual_seed(1), lambda it: it.manual_seed(2)),
    "StateDict": (
        lambda: ckptstore.StateDict(a=[1], t=torch.ones(900)),
        lambda it: it.update(a=it["t"].add_(1)),
    ),
    "RNGState": (ckptstore.RNGState, lambda _: (random.random(), np.random.rand(), torch.rand(3))),
    "module": (lambda: torch.nn.Linear(30, 40), lambda it: it.weight.data.add_(1)),
}


def plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_changes_after_the_return_is_not_stored(gated, name):
    store, gate = gated
    make, change = MUTATIONS[name]
    value = make()
    store.commit_async({"filler": weights(), "x": value}, step=0)
    assert gate.reached.wait(60)
    gate.gate.set()
    store._background._flight.result()
    expected = store.checkout(0)["x"]
    gate.gate.clear()
    handle = store.commit_async({"filler": weights(1), "x": value}, step=1)
    before = store.checkout(0)["x"]
    with torch.no_grad():
        change(value)
    with pytest.raises(AssertionError):
        assert_same(plain(value), expected)
    gate.gate.set()
    handle.result()
    assert_same(store.checkout(1)["x"], before)


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(STATES)
def test_in_the_background_or_not_is_the_same(store, state):
    step = (store.latest() or 0) + 1
    made = store.commit_async(state, step=step).result()
    assert_same(store.checkout(step), state)
    assert store.commit(state, step=step) == made


@pytest.fixture
def as_it_lay(monkeypatch):
    """How many bytes each system call wrote from somewhere else than the block of its thread."""
    original = os.writev
    direct: list[int] = []

    def write(descriptor, views):
        direct.extend(len(view) for view in views[1:])
        return original(descriptor, views)

    monkeypatch.setattr(os, "writev", write)
    return direct


@pytest.mark.parametrize("count", [3 << 20, 1 << 19], ids=["own memory", "shared memory"])
def test_what_was_copied_goes_to_the_disk_as_it_lies(tmp_path, as_it_lay, count):
    state = {str(number): torch.rand(extent) for number, extent in enumerate([count, 1_300, count, count])}
    with ckptstore.open(tmp_path / "store", compression="none") as store:
        store.commit_async(state, step=0).result()
        assert_same(store.checkout(0), state)
        assert store.verify().ok
    size = sum(tensor.nbytes for tensor in state.values())
    assert sum(as_it_lay) > 0.9 * size


@pytest.mark.parametrize(
    ("shift", "copied"), [(0, False), (16, False), (48, False), (80, False), (1, True), (24, True)], ids=str
)
def test_what_is_committed_goes_to_the_disk_as_it_lies(tmp_path, as_it_lay, shift, copied):
    """Wherever it begins; but for what lies beside 64 bytes, the multiples at which payloads begin."""
    count = 3 << 18
    memory = torch.rand(2 * count + 1_000)
    start = -memory.data_ptr() // memory.itemsize % 128 + shift
    state = {"a": memory[start : start + count], "b": torch.rand(1_300), "c": memory[start : start + 2 * count]}
    with ckptstore.open(tmp_path / "store", compression="none", chunk_bytes=4 * count) as store:
        store.commit(state, step=0)
        assert_same(store.checkout(0), state)
        assert store.verify().ok
    assert (sum(as_it_lay) < 0.1 * memory.nbytes) if copied else (sum(as_it_lay) > 0.9 * memory.nbytes)


def test_what_is_tied_is_copied_once(store):
    weight = torch.nn.Parameter(torch.rand(50_000))
    handle = store.commit_async({"a": weight, "b": [weight]}, step=0)
    assert handle.progress.total == weight.nbytes
    handle.result()
    found = store.checkout(0)
    assert found["a"] is found["b"][0]


def test_training_goes_on_meanwhile(store):
    model = torch.nn.Linear(60, 50)
    optimizer = torch.optim.AdamW(model.parameters())
    states = {}
    for step in range(5):
        model(torch.rand(8, 60)).sum().backward()
        optimizer.step()
        states[step] = copy.deepcopy({"model": model.state_dict(), "optim": optimizer.state_dict()})
        store.commit_async({"model": model, "optim": optimizer}, step=step)
    store._background.land()
    for step, state in states.items():
        assert_same(store.checkout(step), state)


# the handle


def test_a_handle_tells_how_far_it_is(gated):
    store, gate = gated
    state = weights()
    handle = store.commit_async(state, step=0, metadata={"loss": 1.5})
    handle.wait_staged()
    assert gate.reached.wait(60)
    assert not handle.done()
    assert 0 <= handle.progress.done <= handle.progress.total == 20_000
    with pytest.raises(TimeoutError, match="still being written"):
        handle.result(0.01)
    assert store.steps() == []
    gate.gate.set()
    made = handle.result(60)
    assert handle.done()
    assert handle.progress.done == 20_000
    assert made == store.find(0) == handle.result()
    assert made.metadata == {"loss": 1.5}


def test_one_commit_is_in_flight_at_a_time(gated):
    store, gate = gated
    first = store.commit_async(weights(), step=0)
    second = []
    waiting = threading.Thread(target=lambda: second.append(store.commit_async(weights(1), step=1)))
    waiting.start()
    waiting.join(0.2)
    assert not second
    gate.gate.set()
    waiting.join(60)
    assert first.done()
    second[0].result()
    assert store.steps() == [0, 1]
    assert store.find(1).parent == store.find(0).id


def test_a_commit_follows_the_one_in_flight(gated):
    store, gate = gated
    handle = store.commit_async({"w": torch.zeros(5000)}, step=0)
    assert gate.reached.wait(60)
    thread = threading.Thread(target=store.commit, args=({"w": torch.ones(5000)},), kwargs={"step": 1})
    thread.start()
    thread.join(0.5)  # by now it waits, or has seen what was there before
    gate.gate.set()
    thread.join()
    assert store.find(1).parent == handle.result().id


def test_threads_take_turns(gated):
    store, gate = gated
    handles: list[Any] = []
    started: list[int] = []

    def commit(step: int) -> None:
        handles.append(store.commit_async(weights(step), step=step))
        started.append(sum(not handle.done() for handle in handles))

    threads = [threading.Thread(target=commit, args=(step,)) for step in range(6)]
    for thread in threads:
        thread.start()
    assert gate.reached.wait(60)
    threads[0].join(0.2)
    assert len(started) == 1
    gate.gate.set()
    for thread in threads:
        thread.join(60)
    store._background.land()
    assert max(started) == 1
    assert store.steps() == list(range(6))


def test_bad_arguments_are_reported_at_once(store):
    for arguments, error in [
        ({"app_state": {"x": object()}, "step": 0}, UnsupportedLeaf),
        ({"app_state": weights(), "step": -1}, InvalidArgument),
        ({"app_state": weights(), "step": 0, "metadata": {"x": object()}}, InvalidArgument),
        ({"app_state": [], "step": 0}, InvalidArgument),
    ]:
        with pytest.raises(error):
            store.commit_async(**arguments)
    assert store.steps() == []


# errors


@pytest.fixture
def failing(gated):
    store, gate = gated
    gate.error = StorageFull("no space")
    gate.gate.set()
    return store, gate


def test_result_raises_what_went_wrong_once(failing):
    store, gate = failing
    handle = store.commit_async(weights(), step=0)
    for _ in range(2):
        with pytest.raises(StorageFull, match="no space"):
            handle.result()
    assert handle.done()
    gate.error = None
    store.commit(weights(), step=0)
    assert store.steps() == [0]


@pytest.mark.parametrize("how", ["commit", "commit_async", "close"])
def test_an_error_that_nobody_saw_surfaces(failing, how):
    store, gate = failing
    store.commit_async(weights(), step=0)
    act = store.close if how == "close" else lambda: getattr(store, how)(weights(1), step=1)
    with pytest.raises(StorageFull, match="no space") as raised:
        act()
    assert raised.value.__notes__ == ["this is of the commit in the background of step 0 of run 'main'"]
    if how != "close":
        assert store.steps() == []
        gate.error = None
        act()
        store._background.land()
        assert store.steps() == [1]


def test_the_with_block_surfaces_it_too(tmp_path, failing):
    with pytest.raises(StorageFull), failing[0] as store:
        store.commit_async(weights(), step=0)


def test_a_step_that_exists_is_reported_by_the_handle(store):
    store.commit(weights(), step=0)
    handle = store.commit_async(weights(1), step=0)
    with pytest.raises(StepExists, match="step 0"):
        handle.result()
    assert_same(store.checkout(0), weights())
    assert store.commit_async(weights(), step=0).result() == store.find(0)


def test_an_error_of_another_kind_is_not_lost(failing):
    store, gate = failing
    gate.error = KeyError("odd")
    with pytest.raises(KeyError, match="odd"):
        store.commit_async(weights(), step=0).result()


# the end of the interpreter

_EXIT = """
import sys, time, torch, ckptstore
from ckptstore.storage.local import LocalStorage
store = ckptstore.open(sys.argv[1])
store.commit({{"w": torch.arange(9000)}}, step=0)
store.checkout(0)
put = LocalStorage.put
def slow(self, key, parts):
    if key.startswith("packs/"):
        time.sleep(0.5)
        {fail}
    put(self, key, parts)
LocalStorage.put = slow
store.commit_async({{"w": torch.arange(50_000)}}, step=3)
print("over")
{end}
"""


def _run_to_the_end(place: Any, end: str = "", fail: str = "") -> Any:
    source = _EXIT.format(end=end, fail=fail)
    return subprocess.run([sys.executable, "-c", source, place], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError"])
def test_the_interpreter_waits_for_it(tmp_path, end):
    done = _run_to_the_end(tmp_path / "store", end)
    assert done.stdout == "over\n"
    assert (done.stderr == "") == (end != "raise KeyError")
    assert "ckptstore" not in done.stderr
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1)
    with ckptstore.open(tmp_path / "store") as store:
        assert torch.equal(store.checkout(3)["w"], torch.arange(50_000))


def test_an_error_is_reported_at_exit(tmp_path):
    done = _run_to_the_end(tmp_path / "store", fail='raise ckptstore.StorageFull("no space")')
    assert "ckptstore: a background commit failed: StorageFull('no space')" in done.stderr
    with ckptstore.open(tmp_path / "store") as store:
        assert store.steps() == [0]
