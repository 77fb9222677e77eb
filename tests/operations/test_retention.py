import math
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore import InvalidArgument, KeepBest, KeepEvery, KeepEverySeconds, KeepIf, KeepLast
from ckptstore.catalog.records import CommitRecord


def commit(step, **metadata):
    return CommitRecord(f"id{step}", "main", step, None, 2.0 * step, metadata, b"", "", 0, 0, 0)


LOSSES = st.none() | st.sampled_from([1, 2.5, -1.0, True, "low", math.nan, math.inf])
RUNS = st.dictionaries(st.integers(0, 40), LOSSES, max_size=12).map(
    lambda losses: [commit(step, **({} if loss is None else {"loss": loss})) for step, loss in sorted(losses.items())]
)
POLICIES = st.recursive(
    st.builds(KeepLast, st.integers(0, 5))
    | st.builds(KeepEvery, st.integers(1, 9))
    | st.builds(KeepEverySeconds, st.integers(1, 9))
    | st.builds(KeepBest, st.just("loss"), st.integers(0, 4), st.sampled_from(["min", "max"])),
    lambda inner: st.builds(lambda one, other: one | other, inner, inner),
    max_leaves=4,
)


@given(RUNS, st.integers(0, 15))
def test_keep_last(commits, count):
    assert list(KeepLast(count).keep(commits)) == [c.id for c in commits][max(0, len(commits) - count) :]


@given(RUNS, st.integers(1, 15))
def test_keep_every(commits, interval):
    assert set(KeepEvery(interval).keep(commits)) == {c.id for c in commits if c.step % interval == 0}


@given(RUNS, st.integers(1, 30))
def test_keep_every_seconds(commits, seconds):
    kept = KeepEverySeconds(seconds).keep(commits)
    times = [c.created for c in commits if c.id in kept]
    assert times[:1] == [c.created for c in commits][:1]
    assert all(later - earlier >= seconds for earlier, later in pairwise(times))
    dropped = [c.created for c in commits if c.id not in kept]
    assert all(any(0 <= time - other < seconds for other in times) for time in dropped)
    assert KeepEverySeconds(seconds).keep([c for c in commits if c.id in kept]) == kept


@pytest.mark.parametrize("ahead", [-1e6, 1e6])
def test_one_commit_whose_clock_was_wrong_drops_no_later_ones(ahead):
    commits = [replace(each, created=each.created + ahead * (each.step == 3)) for each in map(commit, range(9))]
    kept = KeepEverySeconds(4).keep(commits)
    assert [int(identity[2:]) for identity in kept] == [0, 2, 3, 4, 6, 8]


@given(RUNS, st.frozensets(st.integers(0, 40)))
def test_keep_if(commits, steps):
    assert set(KeepIf(lambda c: c.step in steps).keep(commits)) == {c.id for c in commits if c.step in steps}


@given(RUNS, st.integers(0, 5), st.sampled_from(["min", "max"]))
def test_keep_best(commits, count, mode):
    sign = 1 if mode == "min" else -1
    rated = {
        c.id: (sign * c.metadata["loss"], -c.step)
        for c in commits
        if isinstance(c.metadata.get("loss"), int | float) and not math.isnan(c.metadata["loss"])
    }
    kept = set(KeepBest("loss", count, mode).keep(commits))
    assert kept == set(sorted(rated, key=rated.__getitem__)[:count])


@given(RUNS, POLICIES, POLICIES)
def test_a_union_keeps_what_either_keeps_for_the_first_reason(commits, one, other):
    joined = (one | other).keep(commits)
    assert joined == other.keep(commits) | one.keep(commits)


def test_a_policy_of_ones_own(tmp_path):
    class KeepPrimes(ckptstore.Policy):
        def keep(self, commits):
            return {c.id: "prime" for c in commits if c.step in {2, 3, 5, 7}}

    with ckptstore.open(tmp_path / "store") as store:
        for step in range(8):
            store.commit({"step": step}, step=step)
        plan = store.plan_gc(KeepPrimes() | KeepLast(1), grace=0)
        assert [c.step for c in plan.delete] == [0, 1, 4, 6]
        assert set(plan.keep.values()) == {"prime"}
        assert plan.execute().deleted == (0, 1, 4, 6)
        assert store.steps() == [2, 3, 5, 7]


class Keeping(ckptstore.Policy):
    """Keeps what it is given."""

    def __init__(self, kept):
        self.kept = kept

    def keep(self, commits):
        return self.kept(commits)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (lambda commits: {c.step: "step" for c in commits}, "keeps 0, which is no id of a commit"),
        (lambda commits: {c.address: "address" for c in commits}, "keeps 'main@0', which is no id"),
        (lambda commits: {commits[0].id: "", 1: ""}, "keeps 1, which is no id"),
        (lambda commits: [c.id for c in commits], "keeps a list"),
        (lambda _: None, "keeps a NoneType"),
    ],
)
def test_a_policy_of_ones_own_that_names_no_commits(tmp_path, kept, message, more):
    keep = Keeping(kept) | KeepLast(1) if more else Keeping(kept)
    with ckptstore.open(tmp_path / "store") as store:
        for step in range(3):
            store.commit({"step": step}, step=step)
        if more and "main@0" in message:
            assert store.gc(keep, grace=0, most=1).deleted == (0, 1)
            return
        with pytest.raises(InvalidArgument, match=message):
            store.gc(keep, grace=0, most=1)
        assert store.steps() == [0, 1, 2]


def test_one_of_several_policies_may_name_only_what_is_gone(tmp_path):
    pinned = Keeping(lambda _: MappingProxyType({"0" * 32: "released"}))
    with ckptstore.open(tmp_path / "store") as store:
        with ckptstore.CheckpointManager(store, 1, keep=pinned | KeepLast(2), grace=0) as manager:
            for step in range(5):
                manager.save(step, {"step": step})
        assert store.steps() == [3, 4]
        with pytest.raises(InvalidArgument, match="keeps '00000000000000000000000000000000', which is no id"):
            store.gc(pinned, grace=0, most=1)


def test_a_policy_of_ones_own_may_name_what_is_gone(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        pinned = [store.commit({"step": step}, step=step).id for step in range(3)][:2]
        store.delete(0)
        assert store.gc(Keeping(lambda _: dict.fromkeys(pinned, "pinned")), grace=0).deleted == (2,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepLast(-1), "0 or more"),
        (lambda: KeepEvery(0), "at least 1"),
        (lambda: KeepEverySeconds(0), "more than 0"),
        (lambda: KeepIf(3), "a function"),  # type: ignore[arg-type]
        (lambda: KeepBest("loss", -1), "0 or more"),
        (lambda: KeepBest("loss", 1, "middle"), "min or max"),  # type: ignore[arg-type]
    ],
)
def test_policies_that_cannot_be(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_counts_of_numpy():
    assert KeepLast(np.int64(2)) == KeepLast(2)  # type: ignore[arg-type]
    assert ckptstore.SaveEvery(np.int64(5)) == ckptstore.SaveEvery(5)  # type: ignore[arg-type]
