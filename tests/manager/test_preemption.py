"""Signals: one last commit, and a resumed run that ends with the same bits."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

import ckptstore
from ckptstore import CheckpointManager, InvalidArgument, KeepLast, StorageFull
from ckptstore.testing.equality import assert_same

TRAIN = Path(__file__).with_name("train.py")
BOTH = [signal.SIGTERM, signal.SIGUSR1]


@pytest.fixture(autouse=True)
def restored():
    """Every test leaves the handlers as they were."""
    before = [signal.getsignal(number) for number in BOTH]
    yield
    found = [signal.getsignal(number) for number in BOTH]
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)  # one failure is enough
    assert found == before


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.parametrize("async_", [True, False])
def test_one_more_commit_that_is_durable_on_return(store, state, number, async_):
    with CheckpointManager(store, 100, async_=async_) as manager:
        assert not manager.save(1, state())
        assert not manager.reached_preemption(1)
        os.kill(os.getpid(), number)
        assert not manager.reached_preemption(1)  # agreed already
        assert manager.should_save(2)
        assert manager.save(2, state())
        assert manager.latest_step() == 2
        assert manager.reached_preemption(2)
        assert not manager.save(3, state())
        assert manager.reached_preemption(3)
        assert manager.save(100, state())


def test_it_can_be_left_off(store, state):
    handled = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
    with CheckpointManager(store, 100, on_preemption=False) as manager:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not manager.reached_preemption(1)
        assert not manager.save(1, state())
    assert handled == [signal.SIGUSR1]
    signal.signal(signal.SIGUSR1, before)


def test_earlier_handlers_are_called_and_put_back(store):
    handled = []

    def mine(number, frame):
        handled.append(number)

    before = signal.signal(signal.SIGTERM, mine)
    with CheckpointManager(store, 1) as manager:
        os.kill(os.getpid(), signal.SIGTERM)
        assert manager.reached_preemption(1)
    assert handled == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, before)


def test_a_handler_on_top_stays(store):
    first, second = CheckpointManager(store, 1), CheckpointManager(store, 1)
    first.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert second.reached_preemption(1)
    second.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_managers_that_overlap_leave_earlier_handlers(store):
    handled = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: handled.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    managers = [CheckpointManager(store, 1) for _ in range(3)]
    for manager in managers:
        os.kill(os.getpid(), signal.SIGTERM)
        assert managers[-1].reached_preemption(1)
        manager.close()
    assert handled == [signal.SIGTERM] * 3
    assert signal.getsignal(signal.SIGTERM) is mine
    signal.signal(signal.SIGTERM, before)


def on_top():
    """Install a handler for SIGTERM that calls the one before."""
    before = signal.getsignal(signal.SIGTERM)
    assert callable(before)

    def mine(number, frame):
        handled.append(number)
        before(number, frame)

    handled = []
    signal.signal(signal.SIGTERM, mine)


def ended(act):
    """How a child process that does this ends: its status, or minus a signal's number."""
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_closed_manager_below_another_handler_lets_the_process_end(store):
    def act():
        manager = CheckpointManager(store, 1)
        on_top()
        terminate()
        assert manager.reached_preemption(1)
        manager.close()
        terminate()

    assert ended(act) == -signal.SIGTERM


def test_a_closed_manager_below_another_one_does_not(store):
    def act():
        first = CheckpointManager(store, 1)
        on_top()
        second = CheckpointManager(store, 1)
        first.close()
        terminate()
        assert second.reached_preemption(1)

    assert ended(act) == 0


def test_a_closed_manager_passes_on_that_a_signal_is_ignored(store):
    def act():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        manager = CheckpointManager(store, 1)
        on_top()
        manager.close()
        terminate()

    assert ended(act) == 0


@pytest.fixture
def dumps(tmp_path):
    """How many bytes faulthandler wrote that were not counted before; it listens to SIGUSR1 when it is told to."""
    with (tmp_path / "dumps").open("wb") as file:
        counted = 0

        def more(chain=None):
            nonlocal counted
            if chain is not None:
                faulthandler.register(signal.SIGUSR1, file=file, all_threads=False, chain=chain)
            os.kill(os.getpid(), signal.SIGUSR1)
            before, counted = counted, os.path.getsize(file.name)
            return counted - before

        yield more
        faulthandler.unregister(signal.SIGUSR1)


def test_a_handler_of_c_is_left_alone(store, dumps):
    assert dumps(chain=False)
    with pytest.warns(UserWarning, match="SIGUSR1 has a handler that is not Python's") as warned:
        manager = CheckpointManager(store, 1)
    assert [warning.filename for warning in warned] == [__file__]
    assert dumps()
    assert not manager.reached_preemption(1)
    terminate()
    assert manager.reached_preemption(2)
    manager.close()
    assert dumps()


def test_a_handler_of_c_on_top_stays(store, dumps):
    def act():
        with CheckpointManager(store, 1) as manager:
            assert dumps(chain=True)
            assert manager.reached_preemption(1)
            assert dumps(chain=False)
        assert dumps()

    assert ended(act) == 0


def test_a_forked_child_may_have_a_manager_too(store):
    def act():
        with CheckpointManager(store, 1) as manager:
            terminate()
            assert manager.reached_preemption(1)
        terminate()

    with CheckpointManager(store, 1):
        assert ended(act) == -signal.SIGTERM


def test_forked_children_die_as_ever(store):
    with CheckpointManager(store, 1) as manager:
        ready, announce = os.pipe()
        child = os.fork()
        if not child:
            os.write(announce, b"!")
            while True:
                signal.pause()
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert not manager.reached_preemption(0)


def test_handlers_are_for_the_main_thread(store):
    found = []

    def make(**options):
        try:
            CheckpointManager(store, 1, **options).close()
        except InvalidArgument as error:
            found.append(str(error))

    for options in ({}, {"on_preemption": False}):
        thread = threading.Thread(target=make, kwargs=options)
        thread.start()
        thread.join()
    assert len(found) == 1 and "main thread" in found[0]


def test_what_failed_before_does_not_cost_the_last_commit(gated, state):
    store, gate = gated
    manager = CheckpointManager(store, 2)
    gate.error = StorageFull("no space")
    manager.save(0, state())
    assert manager._saves.flight and manager._saves.flight.exception()
    os.kill(os.getpid(), signal.SIGTERM)
    assert manager.save(1, state())
    assert manager.latest_step() == 1
    with pytest.raises(StorageFull, match="no space"):
        manager.close()


def test_nor_does_what_fails_meanwhile(gated, state):
    store, gate = gated
    manager = CheckpointManager(store, 2)
    gate.gate.clear()
    gate.error = StorageFull("no space")
    manager.save(0, state())
    assert gate.reached.wait(60)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=gate.gate.set).start()
    assert manager.save(1, state())
    assert manager.latest_step() == 1
    with pytest.raises(StorageFull, match="no space"):
        manager.close()


def test_the_last_commit_drops_nothing(store, state):
    """There may be seconds left to live."""
    with CheckpointManager(store, 1, keep=KeepLast(1)) as manager:
        manager.save(0, state())
        manager.join()
        os.kill(os.getpid(), signal.SIGTERM)
        manager.save(1, state())
    assert store.steps() == [0, 1]


# whole trainings, each in a process of its own


class Training:
    """A training that takes one step for each line it is sent, or all when nobody sends any."""

    def __init__(self, folder: Path, run: str, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, TRAIN, folder, run, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def step(self) -> str:
        """Let it take a step; what it says of it."""
        self._to.write("\n")
        self._to.flush()
        return self._from.readline().strip()

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def finish(self) -> tuple[list[str], int]:
        """Let it go on to its end; what it says, and its status."""
        said, _ = self._process.communicate(timeout=120)
        return said.splitlines(), self._process.returncode


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The last state of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "store"
    assert Training(folder, "straight").finish()[1] == 0
    with ckptstore.open(folder, run="straight", create=False) as store:
        return store.checkout(12)


@pytest.mark.crash
@pytest.mark.parametrize("number", BOTH)
def test_a_preempted_training_ends_with_the_same_bits(tmp_path, straight, number):
    training = Training(tmp_path / "store", "main")
    for step in range(1, 8):
        assert training.step() == f"step {step}"
    training.send(number)
    assert training.finish() == (["step 8", "preempted at 8"], 0)
    with ckptstore.open(tmp_path / "store", create=False) as store:
        assert store.steps() == [4, 8]
        assert Training(tmp_path / "store", "main").finish() == (["resumed 8", *_steps(9, 12)], 0)
        assert store.steps() == [4, 8, 12]
        assert_same(store.checkout(12), straight)


@pytest.mark.crash
def test_a_killed_training_ends_with_the_same_bits(tmp_path, straight):
    training = Training(tmp_path / "store", "main", "every=1")
    for step in range(1, 7):
        assert training.step() == f"step {step}"
    training.send(signal.SIGKILL)
    assert training.finish()[1] == -signal.SIGKILL
    with ckptstore.open(tmp_path / "store", create=False) as store:
        newest = store.latest()
        assert newest in {5, 6}  # at most one commit is in flight
        assert store.verify().ok
        assert Training(tmp_path / "store", "main").finish()[0][0] == f"resumed {newest}"
        assert_same(store.checkout(12), straight)


@pytest.mark.crash
def test_killed_while_a_commit_is_written(tmp_path, straight):
    training = Training(tmp_path / "store", "main", "stuck=8")
    for step in range(1, 8):
        assert training.step() == f"step {step}"
    assert training.step() == "writing 8"
    training.send(signal.SIGKILL)
    assert training.finish()[1] == -signal.SIGKILL
    with ckptstore.open(tmp_path / "store", create=False) as store:
        assert store.steps() == [4]
        assert Training(tmp_path / "store", "main").finish() == (["resumed 4", *_steps(5, 12)], 0)
        assert_same(store.checkout(12), straight)
        assert store.verify().ok


def _steps(first, last):
    return [f"step {step}" for step in range(first, last + 1)]
