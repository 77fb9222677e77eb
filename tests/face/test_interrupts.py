"""What signals, other threads, forks and the end of the interpreter do to commits in the background: no harm."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ckptstore
from ckptstore import CommitInFlight, StateError, StorageFull, errands
from ckptstore.operations import view
from ckptstore.operations.committing import preloading
from ckptstore.operations.committing.background import Background
from ckptstore.state.kept import KeptBuffers
from ckptstore.state.lending import Lender
from ckptstore.testing.equality import assert_same
from tests.face.test_just_in_time import slowed_store


@pytest.fixture(autouse=True)
def gradients():
    """Who interrupts torch itself as it leaves `no_grad` leaves gradients off."""
    yield
    torch.set_grad_enabled(True)


@pytest.fixture
def slowed(tmp_path):
    store, storage = slowed_store(tmp_path / "store")
    yield store, storage
    storage.gate.set()
    store.close()


class Signalled(Exception):
    """Raised by a signal's handler."""


@contextmanager
def handling(handler: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def refuse() -> None:
    raise Signalled


def signal_soon() -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()


def owned(count: int = 3) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    weights = [nn.Parameter(torch.full((5000,), float(number))) for number in range(count)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return weights, torch.optim.SGD(weights, lr=1)


def copied(weights: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(weight.detach().clone()) for weight in weights]


# threads


def test_a_commit_of_another_thread_lets_nobody_by(slowed):
    store, storage = slowed
    average = torch.zeros(50_000)
    storage.gate.clear()
    store.commit_async({"average": average}, step=1)
    metrics = threading.Thread(target=lambda: store.commit({"loss": 1.0}, step=1, run="metrics"))
    metrics.start()
    metrics.join(0.1)
    average.fill_(7)
    second = threading.Thread(target=lambda: store.commit_async({"average": average}, step=2))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    storage.gate.set()
    metrics.join(60)
    second.join(60)
    store._background.land()
    assert store.read(1, "average").unique().tolist() == [0]
    assert store.read(2, "average").unique().tolist() == [7]
    assert store.verify().ok


def test_a_commit_of_another_thread_disturbs_no_step(slowed):
    store, _ = slowed
    weights, optimizer = owned()
    started, over = threading.Event(), threading.Event()

    def hook(*_: Any) -> None:
        started.set()
        assert over.wait(60)

    optimizer.register_step_pre_hook(hook)
    store.commit_async({"w": weights, "optim": optimizer}, step=1).result()

    def other() -> None:
        assert started.wait(60)
        store.commit({"loss": 1.0}, step=1, run="metrics")
        over.set()

    thread = threading.Thread(target=other)
    thread.start()
    optimizer.step()
    thread.join(60)


# signals


@pytest.mark.parametrize("how", ["commit", "commit_async", "result"])
def test_whoever_is_interrupted_while_waiting_may_go_on(slowed, how):
    store, storage = slowed
    average = torch.zeros(50_000)
    storage.gate.clear()
    handle = store.commit_async({"average": average}, step=1)
    calls = {"commit": store.commit, "commit_async": store.commit_async}
    with handling(refuse), pytest.raises(Signalled):
        signal_soon()
        calls[how]({"x": 1}, step=2) if how in calls else handle.result()
    average.fill_(7)
    assert not handle.done()
    with pytest.raises(CommitInFlight):
        store.commit_async({"average": average}, step=3, when_busy="raise")
    threading.Timer(0.2, storage.gate.set).start()
    store.commit_async({"average": average}, step=3).result()
    assert handle.result().step == 1
    assert store.steps() == [1, 3]
    assert store.read(1, "average").unique().tolist() == [0]
    assert store.verify().ok


@pytest.mark.parametrize("at", [Lender.claim, Lender.settle, Lender.wait])
def test_a_step_that_is_interrupted_holds_up_nothing(slowed, monkeypatch, at):
    store, storage = slowed
    weights, optimizer = owned()
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    before = copied(weights)
    signals = [None]

    def signalling(*arguments: Any, **keywords: Any) -> Any:
        if signals:
            signals.pop()
            os.kill(os.getpid(), signal.SIGUSR1)
        return at(*arguments, **keywords)

    monkeypatch.setattr(Lender, at.__name__, signalling)
    threading.Timer(0.3, storage.gate.set).start()
    with handling(refuse), pytest.raises(Signalled):
        optimizer.step()
        time.sleep(5)
    handle.result()
    optimizer.step()
    assert_same(store.checkout(1)["w"], before)


@pytest.mark.parametrize("way", ["commit", "result", "close"])
def test_a_handler_may_save_within_a_step(slowed, monkeypatch, way):
    store, storage = slowed
    weights, optimizer = owned()
    before = copied(weights)
    handled: list[object] = []
    copy = KeptBuffers.copy

    def slow(buffers: KeptBuffers, pairs: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.2)
        copy(buffers, pairs)

    def save() -> None:
        ways = {"commit": lambda: store.commit({"w": weights}, step=2), "result": handle.result, "close": store.close}
        handled.append(ways[way]())

    storage.seconds = lambda: 0.5
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    monkeypatch.setattr(KeptBuffers, "copy", slow)
    with handling(save):
        optimizer.step()
    assert handled
    monkeypatch.undo()
    assert_same(store.checkout(1)["w"], before)
    if way == "commit":
        assert_same(store.checkout(2)["w"], before)


@pytest.mark.parametrize("act", ["commit_async", "close"])
@pytest.mark.parametrize("within", ["the state", "the copying"])
def test_a_handler_within_commit_async_is_refused_another(slowed, monkeypatch, act, within):
    store, _ = slowed
    refusals: list[CommitInFlight] = []

    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    class Handling(ckptstore.StateDict):
        def state_dict(self) -> dict[str, Any]:
            if within == "the state":
                signalled()
            return dict(self)

    copy = KeptBuffers.copy

    def copy_signalled(buffers: KeptBuffers, pairs: Any) -> None:
        signalled()
        copy(buffers, pairs)

    def interfere() -> None:
        with pytest.raises(CommitInFlight) as found:
            store.close() if act == "close" else store.commit_async({"x": 1}, step=2)
        refusals.append(found.value)

    if within == "the copying":
        monkeypatch.setattr(KeptBuffers, "copy", copy_signalled)
    with handling(interfere):
        store.commit_async({"state": Handling(a=1), "w": torch.ones(5000)}, step=1).result()
    assert refusals
    assert store.steps() == [1]


def save_at_random_moments(within: Callable[[ckptstore.Store, int], object], folder: Path) -> tuple[int, int]:
    """How many signals came, each at a moment of a call, and how many of their handlers have saved."""
    chance = random.Random(1)
    state = {"weights": [torch.rand(64, 64) for _ in range(8)]}
    came = saved = 0

    def handle(*_: object) -> None:
        nonlocal came, saved
        came += 1
        store.commit(state, step=1000 + came)
        saved += 1

    before = signal.signal(signal.SIGALRM, handle)
    with ckptstore.open(folder / "store") as store:
        store.commit(state, step=0)
        try:
            for step in range(1, 900):
                signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.02 + 1e-4)
                within(store, step)
                if came >= 25:
                    break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert store.verify().ok
    return came, saved


def commit_anew(store: ckptstore.Store, step: int) -> object:
    return store.commit({"x": torch.rand(100_000)}, step=step)


def commit_anew_behind(store: ckptstore.Store, step: int) -> object:
    return store.commit_async({"x": torch.rand(100_000)}, step=step).result()


@pytest.mark.parametrize("within", [commit_anew, commit_anew_behind])
def test_a_handler_may_save_at_any_moment(tmp_path, within):
    came, saved = save_at_random_moments(within, tmp_path)
    assert came == saved >= 25


def test_a_commit_that_is_interrupted_reads_nothing_any_more(slowed):
    """Its tensors are not set apart."""
    store, storage = slowed
    weights = torch.zeros(50_000)
    storage.gate.clear()
    threading.Timer(0.4, storage.gate.set).start()
    with handling(refuse), pytest.raises(Signalled):
        signal_soon()
        store.commit({"w": weights}, step=1)
    assert storage.gate.is_set()
    weights.fill_(7)
    assert store.steps() == []
    assert store.commit({"w": weights}, step=2).step == 2


def test_a_commit_that_is_interrupted_keeps_nothing(slowed):
    store, storage = slowed
    weights = torch.zeros(50_000)
    kept = weakref.ref(weights)
    storage.gate.clear()
    threading.Timer(0.4, storage.gate.set).start()
    gc.disable()
    try:
        with handling(refuse), pytest.raises(Signalled):
            signal_soon()
            store.commit({"w": weights}, step=1)
        del weights
        assert kept() is None
    finally:
        gc.enable()


def test_a_store_is_closed_while_progress_is_reported(tmp_path):
    store = ckptstore.open(tmp_path / "store")
    store.commit({"w": torch.ones(5000)}, step=1, progress=lambda *_: store.close())
    assert store.steps() == [1]


def test_a_commit_begins_after_another_thread_has_closed(slowed, monkeypatch):
    """Otherwise its optimizers would be left unwatched."""
    store, storage = slowed
    weights, optimizer = owned()
    store.commit_async({"w": weights, "optim": optimizer}, step=0).result()
    closing, may_close = threading.Event(), threading.Event()
    land = Background.land

    def land_slowly(self: Background) -> None:
        land(self)
        if threading.current_thread() is closer:
            closing.set()
            may_close.wait()

    monkeypatch.setattr(Background, "land", land_slowly)
    closer = threading.Thread(target=store.close)
    closer.start()
    assert closing.wait(30)
    threading.Timer(0.3, may_close.set).start()
    storage.gate.clear()
    optimizer.step()
    before = copied(weights)
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    assert may_close.is_set()
    optimizer.step()
    closer.join()
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(1)["w"], before)


# memory


def test_what_moves_to_shared_memory_is_read_there(slowed, monkeypatch):
    store, _ = slowed
    model = nn.Linear(300, 300)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters())
    begin = threading.Event()
    prepare = Lender.prepare
    monkeypatch.setattr(Lender, "prepare", lambda lender: begin.wait(60) and prepare(lender))
    handle = store.commit_async({"model": model, "optim": optimizer}, step=1)
    address = model.weight.data_ptr()
    model.share_memory()
    assert model.weight.data_ptr() != address
    begin.set()
    handle.result()
    assert_same(store.read(1, "model/weight").detach(), before)


def test_changes_are_seen_however_a_tensor_was_given(slowed):
    store, storage = slowed
    (weight, *_), optimizer = owned()
    storage.gate.clear()
    handle = store.commit_async({"w": weight.data, "optim": optimizer}, step=1)
    with torch.no_grad():
        weight.fill_(7)
    storage.gate.set()
    with pytest.raises(StateError, match="'w' was changed"):
        handle.result()
    assert store.steps() == []


def test_an_optimizer_that_was_not_set_up_for_hooks_is_copied(slowed):
    store, storage = slowed
    weights, inner = owned()

    class Wrapping(torch.optim.Optimizer):
        def __init__(self) -> None:
            self.state, self.param_groups, self.defaults = inner.state, inner.param_groups, inner.defaults

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            inner.step()

        def state_dict(self) -> dict[str, Any]:
            return inner.state_dict()

    wrapping = Wrapping()
    before = copied(weights)
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": wrapping}, step=1)
    wrapping.step()
    storage.gate.set()
    handle.result()
    assert_same(store.checkout(1)["w"], before)


def test_a_failed_commit_is_forgotten_once_it_was_reported(slowed):
    store, storage = slowed
    errors = []
    for step in range(2):
        storage.error = StorageFull("no space")
        errors.append(weakref.ref(storage.error))
        handle = store.commit_async({"w": torch.ones(5000)}, step=step)
        if step:
            with pytest.raises(StorageFull):
                handle.result()
        else:
            with pytest.raises(StorageFull):
                store._background.land()
        storage.error = None
        del handle
    store.commit_async({"x": 1}, step=9).result()
    gc.collect()
    assert [error() for error in errors] == [None, None]


def test_optimizers_keep_nothing_of_a_store_that_is_gone(tmp_path):
    store, _ = slowed_store(tmp_path / "store")
    weights, optimizer = owned()
    store.commit_async({"w": weights, "optim": optimizer}, step=1).result()
    buffers = weakref.ref(store._background._own_stager()._buffers)
    del store, _
    gc.collect()
    assert buffers() is None
    optimizer.step()


# processes


def _child_steps(store: Any, optimizer: torch.optim.Optimizer, weights: Any, handle: Any) -> None:
    optimizer.step()
    for ask in (handle.result, lambda: handle.result(5), handle.exception):
        with pytest.raises(StateError, match="fork"):
            ask()
    handle.surface()  # its error, if there will be one, is the parent's
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_waits_for_no_thread_that_it_does_not_have(slowed):
    store, storage = slowed
    weights, optimizer = owned()
    storage.gate.clear()
    handle = store.commit_async({"w": weights, "optim": optimizer}, step=1)
    assert storage.reached.wait(60)
    child = multiprocessing.get_context("fork").Process(target=_child_steps, args=(store, optimizer, weights, handle))
    child.start()
    child.join(60)
    storage.gate.set()
    assert child.exitcode == 0
    handle.result()
    assert_same(store.checkout(1)["w"], copied(weights))


_FORKED = """
import multiprocessing, sys, torch, ckptstore
def work():
    ckptstore.open(sys.argv[1]).commit_async({"x": torch.ones(3)}, step=1)
with ckptstore.open(sys.argv[1]) as store:
    store.commit({"x": torch.zeros(3)}, step=1)
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""

_FAILED_BEFORE = """
import multiprocessing, sys, torch, ckptstore
store = ckptstore.open(sys.argv[1])
store.commit({"x": torch.zeros(3)}, step=1)
handle = store.commit_async({"x": torch.ones(3)}, step=1)
handle.exception()
child = multiprocessing.get_context("fork").Process(target=int)
child.start()
child.join()
"""

_LATE = """
import atexit, sys, torch, ckptstore
store = ckptstore.open(sys.argv[1])
model = torch.nn.Linear(30, 40)
state = {"model": model, "optim": torch.optim.SGD(model.parameters())}
store.commit(state, step=0)
def late():
    for commit in (store.commit, store.commit_async):
        try:
            commit(state, step=1)
        except ckptstore.InterpreterExiting as error:
            print(error)
atexit.register(late)
"""


_LATE_IN_A_THREAD = """
import sys, threading, time, torch, ckptstore
from ckptstore.operations.committing import handles
store = ckptstore.open(sys.argv[1])
class Slow:
    def state_dict(self):
        while not handles._EXITING.is_set():
            time.sleep(0.01)
        return {"x": torch.ones(3)}
    def load_state_dict(self, state):
        raise NotImplementedError
def work():
    try:
        store.commit_async({"slow": Slow()}, step=1)
    except ckptstore.InterpreterExiting as error:
        print(error)
threading.Thread(target=work).start()
"""


def run(source: str, place: Any, *given: str) -> Any:
    command = [sys.executable, "-c", source, place, *given]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_an_error_is_reported_when_a_fork_ends(tmp_path):
    assert run(_FORKED, tmp_path / "store").stderr.count("a background commit failed: StepExists(") == 1


def test_an_error_of_before_a_fork_is_reported_by_the_parent_alone(tmp_path):
    assert run(_FAILED_BEFORE, tmp_path / "store").stderr.count("a background commit failed: StepExists(") == 1


@pytest.mark.parametrize("first", [False, True])
def test_it_is_told_that_it_is_too_late(tmp_path, first):
    done = run(_LATE.replace("store.commit(state, step=0)", "") if first else _LATE, tmp_path / "store")
    assert done.stdout.count("the interpreter exits") == 2
    assert not done.stderr


def test_a_thread_is_told_whose_commit_was_about_to_begin_when_the_interpreter_exits(tmp_path):
    done = run(_LATE_IN_A_THREAD, tmp_path / "store")
    assert done.stdout.count("the interpreter exits") == 1
    assert not done.stderr


def test_who_can_begin_no_thread_imports_without_one(monkeypatch):
    def refuse_to_start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")  # as Python 3.12 says

    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    preloading._import_apart.__wrapped__(["operations.committing.commit"])


_INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys, ckptstore
store, saved, interrupted = ckptstore.open(sys.argv[1]), [], []
import torch  # or what staging needs would have been imported as the store was opened
def save(*_):
    saved.append(store.commit({"x": torch.ones(300)}, step=1, run="handler").step)
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[2] and not interrupted:
            interrupted.append(name)
            os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGUSR1, save)
sys.meta_path.insert(0, Interrupting())
getattr(store, sys.argv[3])({"x": torch.zeros(300)}, step=0)
store.close()
print(store.steps(), saved, store.read("handler@1", "x").sum().item())
"""


@pytest.mark.parametrize(
    ("call", "module"),
    [
        ("commit", name)
        for name in ("operations.committing.commit", "state.lending", "operations.ranks.together", "state.staging")
    ]
    + [("commit_async", name) for name in ("operations.ranks.wishes", "state.staging", "operations.committing.commit")],
)
def test_a_handler_may_save_while_the_first_commit_imports_what_it_needs(tmp_path, call, module):
    command = [sys.executable, "-c", _INTERRUPTED_IMPORT, tmp_path / "store", f"ckptstore.{module}", call]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("[0] [1] 300.0\n", "")


_OPENED_IMPORT = """
import sys
if "torch" in sys.argv:
    import torch
import ckptstore
ckptstore.open(sys.argv[1], read_only="read" in sys.argv).close()
print("ckptstore.state.staging" in sys.modules)
"""


@pytest.mark.parametrize(("given", "imported"), [(["torch"], True), ([], False)])
def test_opening_imports_what_staging_needs_where_torch_is_imported(tmp_path, given, imported):
    assert run(_OPENED_IMPORT, tmp_path / "store", *given).stdout == f"{imported}\n"


def test_opening_only_to_read_imports_nothing_for_saves(tmp_path):
    ckptstore.open(tmp_path / "store").close()
    assert run(_OPENED_IMPORT, tmp_path / "store", "torch", "read").stdout == "False\n"


_LATE_IMPORT = """
import importlib.abc, sys, threading, torch, ckptstore
store, returned = ckptstore.open(sys.argv[1]), threading.Event()
class Late(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "ckptstore.operations.committing.commit":
            print(returned.wait(30))
sys.meta_path.insert(0, Late())
handle = store.commit_async({"x": torch.ones(300)}, step=0)
returned.set()
print(handle.result().step, store.read(0, "x").sum().item())
"""


def test_the_first_call_does_not_wait_for_what_only_the_background_needs(tmp_path):
    assert run(_LATE_IMPORT, tmp_path / "store").stdout == "True\n0 300.0\n"


_FORKED_IMPORT = """
import faulthandler, importlib.abc, os, sys, threading, time, torch, ckptstore
store, begun = ckptstore.open(sys.argv[1]), threading.Event()
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "ckptstore.operations.committing.adam":
            begun.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow())
handle = store.commit_async({"x": torch.ones(300)}, step=0)
assert begun.wait(30)
if not (child := os.fork()):
    faulthandler.dump_traceback_later(20, exit=True)
    store.commit({"x": torch.zeros(300)}, step=1, run="child")
    os._exit(0)
print(os.waitpid(child, 0)[1], handle.result().step, store.read("child@1", "x").sum().item())
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_is_forked_off_while_a_first_commit_imports_can_commit(tmp_path):
    assert run(_FORKED_IMPORT, tmp_path / "store").stdout == "0 0 0.0\n"


_IMPORTED = """
import sys, torch, ckptstore
with ckptstore.open(sys.argv[1]) as store:
    store.commit_async({"x": torch.ones(300)}, step=0).result()
    before = set(sys.modules)
    store.commit({"x": torch.zeros(300)}, step=1)
    print(sorted(name for name in set(sys.modules) - before if name.startswith("ckptstore")))
"""


def test_a_background_commit_leaves_nothing_to_import(tmp_path):
    assert run(_IMPORTED, tmp_path / "store").stdout == "[]\n"


_REFUSED_IMPORT = """
import importlib.abc, sys, torch, ckptstore
store = ckptstore.open(sys.argv[1])
class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "ckptstore.operations.committing.adam":
            raise ImportError("refused")
sys.meta_path.insert(0, Refusing())
weights = [torch.nn.Parameter(torch.ones(5000))]
optimizer = torch.optim.SGD(weights, lr=1.0)
handle = store.commit_async({"w": weights, "optimizer": optimizer}, step=7)
error = handle.exception()
print(type(error).__name__, "step 7" in error.__notes__[0])
optimizer.step()
"""


def test_what_cannot_be_imported_in_the_background_fails_that_commit(tmp_path):
    assert run(_REFUSED_IMPORT, tmp_path / "store").stdout == "ImportError True\n"


def test_a_handler_that_steps_while_a_step_copies_is_refused(tmp_path, monkeypatch):
    """Where no thread can be begun, the main one copies; what it has not copied yet must not change."""
    monkeypatch.setattr(errands, "_an_idle_one", lambda: None)
    released, commit, copy = threading.Event(), Background._commit, KeptBuffers.copy
    parameter = torch.nn.Parameter(torch.zeros(5000))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(5000)

    def late(*given):
        released.wait(60)
        return commit(*given)

    def interrupted(buffers, pairs):
        monkeypatch.setattr(KeptBuffers, "copy", copy)
        optimizer.step()  # as a signal's handler does
        return copy(buffers, pairs)

    with ckptstore.open(tmp_path / "store") as store:
        monkeypatch.setattr(Background, "_commit", late)
        handle = store.commit_async({"w": [parameter], "optimizer": optimizer}, step=1)
        monkeypatch.setattr(KeptBuffers, "copy", interrupted)
        with pytest.raises(StateError, match="a signal's handler interrupted the copying"):
            optimizer.step()
        released.set()
        with pytest.raises(StateError):
            handle.result()
        assert store.steps() == []
        store.commit_async({"w": [parameter], "optimizer": optimizer}, step=2).result()
        assert torch.equal(store.checkout(2)["w"][0], parameter)


def test_a_handler_that_reads_while_manifests_are_counted(tmp_path, monkeypatch):
    with ckptstore.open(tmp_path / "store") as store:
        for step in range(4):
            store.commit({"w": torch.full((300,), float(step)), "x": step}, step=step)
        monkeypatch.setattr(view, "_MOST_LEAVES", 2)
        reading = iter(range(100))

        def interrupting(manifests):
            for manifest in manifests:
                if next(reading) % 3 == 0:
                    assert store.read(2, "x") == 2  # as a signal's handler does
                yield manifest

        monkeypatch.setattr(view, "tuple", interrupting, raising=False)
        for step in (0, 1, 3, 0):
            assert store.read(step, "x") == step
        assert next(reading) > 3
