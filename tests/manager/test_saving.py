"""Save policies beside plain models of them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore import (
    CheckpointManager,
    InvalidArgument,
    Moment,
    SaveAt,
    SaveEvery,
    SaveEverySeconds,
    SaveIf,
    StorageFull,
)

MOMENTS = st.builds(
    Moment, st.integers(0, 60), st.none() | st.integers(0, 60), st.floats(0, 100, allow_nan=False), st.booleans()
)
POLICIES = st.recursive(
    st.builds(SaveEvery, st.integers(1, 9))
    | st.builds(SaveAt, st.frozensets(st.integers(0, 60)))
    | st.builds(SaveEverySeconds, st.floats(0, 100))
    | st.just(SaveIf(lambda moment: not moment.saving)),
    lambda inner: st.builds(lambda one, other: one | other, inner, inner),
    max_leaves=4,
)


@given(MOMENTS, st.integers(1, 70), st.frozensets(st.integers(0, 60)), st.floats(0, 100))
def test_each_is_what_its_name_says(moment, interval, steps, seconds):
    assert SaveEvery(interval).due(moment) == (moment.step in range(0, 61, interval))
    assert SaveAt(steps).due(moment) == (moment.step in steps)
    assert SaveEverySeconds(seconds).due(moment) == (moment.seconds >= seconds)
    assert SaveIf(lambda now: now.last is None).due(moment) == (moment.last is None)


@given(MOMENTS, POLICIES, POLICIES)
def test_a_union_saves_what_either_saves(moment, one, other):
    assert (one | other).due(moment) == (one.due(moment) or other.due(moment))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SaveEvery(0),
        lambda: SaveEvery("3"),  # type: ignore[arg-type]
        lambda: SaveAt(3),  # type: ignore[arg-type]
        lambda: SaveEverySeconds(-1),
        lambda: SaveEverySeconds(float("nan")),
        lambda: SaveIf(3),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(InvalidArgument, match="give"):
        make()


def test_a_union_takes_policies_only():
    with pytest.raises(TypeError):
        SaveEvery(1) | 3  # type: ignore[operator]


def test_moments(store, state):
    """What a policy sees: the newest of an earlier manager, then what this one saved, and the time since."""
    seen = []

    class Watching(ckptstore.SavePolicy):
        def due(self, moment):
            seen.append(moment)
            return moment.step in {1, 3}

    with CheckpointManager(store, Watching()) as manager:
        for step in range(4):
            manager.save(step, state())
    assert [(moment.step, moment.last) for moment in seen] == [(0, None), (1, None), (2, 1), (3, 1)]
    assert seen[0].seconds <= seen[1].seconds
    with CheckpointManager(store, Watching()) as manager:
        manager.save(4, state())
    assert seen[-1].last == 3


def test_as_often_as_may_be(gated, state):
    store, gate = gated
    with CheckpointManager(store, SaveIf(lambda moment: not moment.saving)) as manager:
        gate.gate.clear()
        assert [manager.save(step, state()) for step in range(3)] == [True, False, False]
        gate.gate.set()
        manager.join()
        assert manager.save(3, state())


def test_a_commit_that_failed_was_no_save(gated, state):
    store, gate = gated
    seen = []

    def choose(moment):
        seen.append(moment)
        return True

    with CheckpointManager(store, SaveIf(choose)) as manager:
        for step, error in enumerate([None, StorageFull("no space"), None]):
            gate.error = error
            manager.save(step, state())
            if error is None:
                manager.join()
            else:
                with pytest.raises(StorageFull):
                    manager.join()
    assert [moment.last for moment in seen] == [None, 0, 0]
    assert seen[2].seconds > seen[1].seconds


def test_nor_was_one_that_failed_before_another_that_failed(gated, state):
    store, gate = gated
    with CheckpointManager(store, 1) as manager:
        gate.gate.clear()
        gate.error = StorageFull("no space")
        manager.save(0, state())
        assert gate.reached.wait(60) and manager.should_save(1)
        threading.Thread(target=gate.gate.set).start()
        with pytest.raises(StorageFull):
            manager.save(1, state())
        gate.error = StorageFull("no space")
        manager.save(1, state())
        with pytest.raises(StorageFull):
            manager.join()
        assert manager.save(0, state())
    assert store.steps() == [0]
