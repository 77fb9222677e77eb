"""What a training loop relies on, in one process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptstore
from ckptstore import (
    BudgetTooSmall,
    CheckpointManager,
    CorruptData,
    InvalidArgument,
    KeepBest,
    KeepEvery,
    KeepIf,
    KeepLast,
    PathNotFound,
    SaveIf,
    StateMismatch,
    StepExists,
    StepNotFound,
    StorageError,
    StorageFull,
    Store,
)
from ckptstore.manager import upkeep
from ckptstore.operations.committing.handles import start_thread


def test_it_saves_at_its_interval_and_says_so(store, state):
    with CheckpointManager(store, 3) as manager:
        answers = {step: (manager.should_save(step), manager.save(step, state())) for step in range(8)}
        assert answers == {step: (step % 3 == 0,) * 2 for step in range(8)}
        manager.join()
        assert manager.all_steps() == [0, 3, 6]
        assert manager.latest_step() == 6


def test_a_step_is_saved_once(store, state):
    with CheckpointManager(store, 1) as manager:
        assert manager.save(0, state())
        assert not manager.should_save(0)
        assert not manager.save(0, state())
    assert float(store.read(0, "w")[0]) == 0


def test_force_saves_whatever_the_policy_says(store, state):
    with CheckpointManager(store, 100) as manager:
        assert not manager.save(7, state())
        assert manager.save(7, state(), force=True)
        assert manager.save_async(9, state(), force=True)
    assert store.steps() == [7, 9]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_metrics_are_metadata_and_tell_the_best(store, state, mode):
    with CheckpointManager(store, 1, async_=False) as manager:
        assert manager.best("loss", mode) is None
        for step, loss in enumerate([2.5, 1.0, None, 1.0, 3.0]):
            manager.save(step, state(), {} if loss is None else {"loss": loss})
        assert manager.best("loss", mode) == {"min": 3, "max": 4}[mode]
        with pytest.warns(UserWarning, match="no commit has 'accuracy' in its metadata; nearest: loss"):
            assert manager.best("accuracy") is None
    assert store.find(0).metadata == {"loss": 2.5}


def test_saved_now_or_in_the_background(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, state())
        assert manager.latest_step() == 0 and not manager.is_saving_in_progress()
        gate.gate.clear()
        manager.save_async(1, state())
        assert manager.is_saving_in_progress()
        assert manager.latest_step() == 0
        gate.gate.set()
        manager.join()
        assert manager.latest_step() == 1 and not manager.is_saving_in_progress()


def test_what_changes_parameters_outside_of_steps_needs_a_copy_at_once(gated):
    store, gate = gated
    weight = torch.nn.Parameter(torch.zeros(5000))
    state = {"w": weight, "optimizer": torch.optim.SGD([weight])}
    with CheckpointManager(store, 1, just_in_time=False) as manager:
        for step in range(3):
            gate.gate.clear()
            manager.save(step, state)
            with torch.no_grad():
                weight.add_(1)
            gate.gate.set()
            manager.join()
            assert float(store.read(step, "w").detach()[0]) == step


def test_restore(store, state):
    with CheckpointManager(store, 1) as manager:
        with pytest.raises(StepNotFound, match="no step yet"):
            manager.restore()
        for step in range(3):
            manager.save(step, state())
        manager.join()
        assert float(manager.restore()["w"][0]) == 2
        assert float(manager.restore(1)["w"][0]) == 1
        target = {"w": torch.empty(5000)}
        assert manager.restore(into=target) is target
        assert float(target["w"][0]) == 2
        manager.restore(0, target)
        assert float(target["w"][0]) == 0
        with pytest.raises(StepNotFound):
            manager.restore(9)


def test_restore_waits_for_what_is_being_saved(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1) as manager:
        manager.save(0, state())
        manager.join()
        gate.gate.clear()
        manager.save(1, state())
        assert gate.reached.wait(60)
        assert float(manager.restore(0)["w"][0]) == float(manager.restore()["w"][0]) == 0
        threading.Timer(0.2, gate.gate.set).start()
        assert float(manager.restore(1)["w"][0]) == 1
        gate.error = StorageFull("no space")
        manager.save(2, state())
        with pytest.raises(StorageFull):
            manager.restore(2)
        with pytest.raises(StepNotFound):
            manager.restore(2)


def test_restore_of_a_part(store, state):
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, {"model": state(), "step": 7})
        assert list(manager.restore(paths="**/w")["model"]) == ["w"]
        weight = torch.empty(5000)
        target = {"model": {"w": weight}, "step": -1}
        manager.restore(0, target, paths=["model"])
        assert (float(weight[0]), target["step"]) == (0, -1)
        with pytest.raises(PathNotFound, match="nearest: model"):
            manager.restore(0, paths="modle")


def test_restore_into_what_is_not_quite_alike(store, state):
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, state())
        target: dict[str, Any] = {"w": torch.ones(5000), "more": 1}
        with pytest.raises(StateMismatch, match="more"):
            manager.restore(into=target)
        manager.restore(into=target, strict=False)
        half = {"w": torch.ones(5000, dtype=torch.float16)}
        with pytest.raises(StateMismatch, match="float16"):
            manager.restore(into=half)
        manager.restore(into=half, allow_cast=True)
        assert not target["w"].any() and not half["w"].any()


def test_restore_keeps_to_a_budget_and_tells_how_far_it_is(store, state):
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, state())
        target = {"w": torch.empty(10_000)[::2]}
        with pytest.raises(BudgetTooSmall, match="budget of 100 bytes"):
            manager.restore(into=target, memory_budget_bytes=100)
        calls: list[tuple[str, int, int]] = []
        manager.restore(into=target, memory_budget_bytes=1 << 16, progress=lambda *it: calls.append(it))
        assert calls[-1] == ("checkout", 20_000, 20_000)


def test_restore_of_what_is_not_damaged(store, state):
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, {"model": state(), "step": 7})
        for pack in Path(store.url, "packs").rglob("*.pack"):
            pack.write_bytes(bytes(pack.stat().st_size))
        with pytest.raises(CorruptData):
            manager.restore()
        with pytest.warns(UserWarning, match="model/w"):
            assert manager.restore(skip_damaged=True) == {"step": 7}
        with pytest.raises(InvalidArgument, match="skip_damaged with into"):
            manager.restore(into={"model": {"w": torch.empty(5000)}}, skip_damaged=True)


def test_restore_has_the_options_of_a_checkout():
    ours, theirs = (signature(it).parameters for it in (CheckpointManager.restore, Store.checkout))
    known = {"allow_pickle", "process_group"}  # to the manager
    assert [*ours] == [name for name in theirs if name not in known]
    assert all(ours[name] == theirs[name] for name in ours if name not in {"self", "step", "into"})


def test_pickles_are_an_option(store):
    with CheckpointManager(store, 1, async_=False, allow_pickle=True) as manager:
        manager.save(0, {"x": json.JSONEncoder})
        assert manager.restore()["x"] is json.JSONEncoder


@pytest.mark.parametrize(
    "arguments",
    [
        {"save_interval": 0},
        {"save_interval": 2.5},
        {"save_interval": True},
        {"save_interval": 1, "keep": 3},
        {"save_interval": 1, "grace": -1},
        {"save_interval": 1, "replicated": 3},
    ],
)
def test_arguments_are_checked_at_once(store, arguments):
    with pytest.raises(InvalidArgument, match=r"give|choose"):
        CheckpointManager(store, **arguments)


def test_it_watches_over_a_store_and_no_folder(store):
    with pytest.raises(InvalidArgument, match="'ckpts': give an open store"):
        CheckpointManager("ckpts", 5)  # type: ignore[arg-type]


def test_bad_steps_and_metrics_are_reported_at_once(store, state):
    with CheckpointManager(store, 1) as manager:
        for step in (-1, 1.5, "3"):
            with pytest.raises(InvalidArgument, match="step"):
                manager.save(step, state())  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="metadata"):
            manager.save(0, state(), {"loss": object()})
        assert manager.save(0, state(), {"loss": torch.tensor(2.0)})
    assert store.find(0).metadata == {"loss": 2.0}


@pytest.mark.parametrize("step", [10, 11])
def test_what_torch_xla_takes_for_force_is_no_metrics(store, state, step):
    with CheckpointManager(store, 10) as manager:
        for save in (manager.save, manager.save_async):
            with pytest.raises(InvalidArgument, match="metrics is a bool: give a dict; force= is given by name"):
                save(step, state(), True)  # type: ignore[arg-type]


# what is kept


@pytest.mark.filterwarnings("ignore:.*no commit has 'loss':UserWarning")
@settings(deadline=None, max_examples=25)
@given(
    last=st.integers(1, 3),
    every=st.integers(1, 5),
    best=st.integers(0, 2),
    losses=st.lists(st.sampled_from([None, 1.0, 2.0, 3.0]), max_size=9),
    tagged=st.sets(st.integers(0, 8)),
)
def test_what_is_kept_is_what_a_plain_model_keeps(tmp_path_factory, last, every, best, losses, tagged):
    keep = KeepLast(last) | KeepEvery(every) | KeepBest("loss", best)
    left: list[int] = []
    with (
        ckptstore.open(tmp_path_factory.mktemp("kept") / "store") as store,
        CheckpointManager(store, 1, keep=keep, on_preemption=False) as manager,
    ):
        for step, loss in enumerate(losses):
            manager.save(step, {"x": step}, {"loss": loss} if loss else None)
            manager.join()
            rated = sorted((losses[old], -old) for old in [*left, step] if losses[old])
            left = [
                old
                for old in [*left, step]
                if old > step - last or old % every == 0 or (losses[old], -old) in rated[:best] or old in tagged
            ]
            assert store.steps() == left
            if step in tagged:
                store.tag(f"step-{step}", step)


def test_a_metric_that_no_commit_has_is_warned_of(store, state):
    with CheckpointManager(store, 1, keep=KeepBest("val_los")) as manager:
        for step in range(3):
            with pytest.warns(UserWarning, match=r"KeepBest.*no commit has 'val_los'.*nearest: val_loss"):
                manager.save(step, state(), {"val_loss": 1.0 + step})
                manager.join()
        assert manager.all_steps() == [0, 1, 2]
    with CheckpointManager(store, 1, keep=KeepBest("val_los") | KeepLast(2)) as manager:
        with pytest.warns(UserWarning, match="nearest: val_loss"):
            manager.save(3, state(), {"val_loss": 4.0})
            manager.join()
        assert manager.all_steps() == [2, 3]
    with CheckpointManager(store, 1, keep=KeepBest("val_loss") | KeepLast(1)) as manager:
        manager.save(4, state())
        manager.join()
        assert manager.all_steps() == [2, 4]


def test_who_tells_no_metric_loses_no_step_for_want_of_one(store, state):
    with CheckpointManager(store, 1, keep=KeepBest("loss")) as manager:
        for step in range(3):
            with pytest.warns(UserWarning, match=r"no commit has 'loss'.*there is none yet"):
                manager.save(step, state())
                manager.join()
        assert manager.all_steps() == [0, 1, 2]


def test_the_newest_stays_whatever_the_policy(store, state):
    with CheckpointManager(store, 1, keep=KeepIf(lambda commit: False), grace=0) as manager:
        for step in range(3):
            manager.save(step, state())
        manager.join()
        assert manager.all_steps() == [2]
        assert store.stats().commits == 1


@pytest.mark.parametrize("grace", [0, 900])
def test_what_is_saved_after_going_back_to_an_older_step_stays(store, state, grace):
    """torch_xla's manager counts by time; here policies count steps, but what was saved last is never dropped."""
    keep = KeepLast(2) | KeepBest("loss")
    with CheckpointManager(store, 1, keep=keep, grace=grace, async_=False) as manager:
        for step in range(6):
            manager.save(step, state(), {"loss": abs(step - 1)})
        manager.join()
        assert manager.all_steps() == [1, 4, 5]
    with CheckpointManager(store, 1, keep=keep, grace=grace, async_=False) as manager:
        for step in (2, 3):
            with pytest.warns(
                UserWarning, match=r"steps up to 5 are older .*latest_step\(\) gives that one.*fork a run"
            ):
                assert manager.save(step, state(), {"loss": 9})
                manager.join()
            assert manager.all_steps() == [1, step, 4, 5]
        store.delete(4, 5)
        manager.save(4, state(), {"loss": 9})
        manager.join()
        assert manager.all_steps() == [1, 3, 4]


def test_dropping_does_not_keep_training_waiting_nor_takes_what_is_in_flight(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1, keep=KeepLast(1), grace=0) as manager:
        for step in range(2):
            manager.save(step, state())
        manager.join()
        gate.verb = "delete"
        gate.reached.clear()
        gate.gate.clear()
        manager.save(2, state())
        assert gate.reached.wait(60)  # the packs of step 1 are about to go
        manager.save(3, state())
        manager.save(4, state())
        gate.gate.set()
        manager.join()
        assert manager.all_steps() == [4]
        assert float(manager.restore()["w"][0]) == 4
    assert store.verify().ok


def test_nothing_is_dropped_when_the_commit_failed(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1, keep=KeepLast(1)) as manager:
        manager.save(0, state())
        manager.join()
        gate.error = StorageFull("no space")
        manager.save(1, state())
        with pytest.raises(StorageFull):
            manager.join()
    assert store.steps() == [0]


# what fails


@pytest.mark.parametrize("call", ["save", "save_async", "should_save", "reached_preemption", "join", "close"])
def test_a_commit_that_failed_is_reported_by_the_next_call_once(gated, state, call):
    store, gate = gated
    manager = CheckpointManager(store, 1)
    gate.error = StorageFull("no space")
    manager.save(0, state())
    assert manager._saves.flight and manager._saves.flight.exception()
    arguments = {"save": (1, state()), "save_async": (1, state()), "join": (), "close": ()}.get(call, (1,))
    with pytest.raises(StorageFull, match="no space"):
        getattr(manager, call)(*arguments)
    assert manager.save(2, state())
    manager.close()
    assert store.steps() == [2]


@pytest.mark.parametrize("call", ["save", "should_save", "join"])
def test_a_step_whose_commit_failed_is_not_saved_already(gated, state, call):
    store, gate = gated
    with CheckpointManager(store, 5) as manager:
        gate.error = StorageFull("no space")
        manager.save(0, state())
        if call != "join":
            assert manager._saves.flight and manager._saves.flight.exception()
        arguments = {"save": (5, state()), "should_save": (5,), "join": ()}[call]
        with pytest.raises(StorageFull):
            getattr(manager, call)(*arguments)
        assert manager.should_save(0) and manager.save(0, state())
        assert not manager.should_save(0)
        assert manager.save(5, state()) and not manager.should_save(5)
    assert store.steps() == [0, 5]


def test_nor_is_one_that_failed_while_the_next_was_being_saved(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1) as manager:
        gate.gate.clear()
        gate.error = StorageFull("no space")
        manager.save(0, state())
        assert gate.reached.wait(60) and manager.should_save(1)
        threading.Thread(target=gate.gate.set).start()
        with pytest.raises(StorageFull):
            manager.save(1, state())
        assert manager.save(0, state()) and manager.save(1, state())
    assert store.steps() == [0, 1]


def test_a_commit_that_failed_beside_one_that_did_not(gated, state):
    """Its error is raised once, and takes nothing back of what was saved since."""
    store, gate = gated
    with CheckpointManager(store, 1) as manager:
        gate.error = StorageFull("no space")
        manager.save(0, state())
        with pytest.raises(StorageFull):
            manager.join()
        manager.save(1, state())
        manager.join()
        assert not manager.should_save(1)


def test_dropping_that_failed_is_reported_too(gated, state):
    store, gate = gated
    manager = CheckpointManager(store, 1, keep=KeepLast(1), grace=0)
    manager.save(0, state())
    gate.verb, gate.error = "delete", StorageError("not now")
    manager.save(1, state())
    with pytest.raises(StorageError, match="not now"):
        manager.join()
    manager.save(2, state())
    manager.close()
    assert store.steps() == [2]


def test_a_step_that_exists_is_not_overwritten(store, state):
    with CheckpointManager(store, 1, async_=False) as manager:
        manager.save(0, state())
    with CheckpointManager(store, 1, async_=False) as manager:
        with pytest.raises(StepExists, match="step 0"):
            manager.save(0, state())
        assert manager.save(1, state())


def test_what_a_policy_raises_reaches_the_loop(store, state):
    policy = SaveIf(lambda moment: moment.step / 0 > 1)
    with CheckpointManager(store, policy) as manager, pytest.raises(ZeroDivisionError):
        manager.save(1, state())


_EXIT = """
import sys, ckptstore
from ckptstore.storage.local import LocalStorage
def fail(self, key):
    raise ckptstore.StorageError("not now")
LocalStorage.delete = fail
store = ckptstore.open(sys.argv[1])
manager = ckptstore.CheckpointManager(store, 1, keep=ckptstore.KeepLast(1), grace=0)
for step in range(2):
    manager.save(step, {"x": step})
"""


def test_what_failed_and_nobody_asked_for_is_reported_at_exit(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _EXIT, tmp_path / "store"], capture_output=True, text=True, check=False
    )
    assert "ckptstore: dropping old steps failed: StorageError('not now')" in done.stderr
    with ckptstore.open(tmp_path / "store") as store:
        assert store.steps() == [1]


def test_one_collection_at_a_time_also_for_a_handler_that_saves(tmp_path, monkeypatch):
    """It comes while the thread that collects is begun."""
    running, most = [], []

    def collect(manager):
        running.append(manager)
        most.append(len(running))
        time.sleep(0.2)
        running.pop()

    real = start_thread

    def interrupted(work, name):
        monkeypatch.setattr(upkeep, "start_thread", real)
        thread = real(work, name)
        time.sleep(0.4)  # it may be over, but for what the handler asks for
        manager.save(2, {"x": 2})  # as a signal's handler does
        return thread

    monkeypatch.setattr(CheckpointManager, "_drop", collect)
    with ckptstore.open(tmp_path / "store") as store:
        manager = CheckpointManager(store, 1, keep=KeepLast(1), async_=False)
        monkeypatch.setattr(upkeep, "start_thread", interrupted)
        manager.save(1, {"x": 1})
        manager.join()
        assert not running and set(most) == {1}
        assert store.steps() == [1, 2]
        monkeypatch.setattr(upkeep, "start_thread", lambda *_: (_ for _ in ()).throw(RuntimeError("no thread")))
        with pytest.raises(RuntimeError, match="no thread"):
            manager.save(3, {"x": 3})
        monkeypatch.setattr(upkeep, "start_thread", real)
        manager.save(4, {"x": 4})
        manager.close()
        assert set(most) == {1} and len(most) >= 2
