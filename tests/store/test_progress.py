"""What keeps a store reports how far it is, and stops where its callback wants it to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.errors import InvalidArgument
from ckptstore.format.packs import pack_key
from ckptstore.progress import meter
from ckptstore.testing.audit import CHUNK_BYTES, assert_nothing_leaked, site_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.lanes import FakeDevices
from tests.store.blocks import state


class Callback:
    """A callback that keeps what it is called with, and raises at one call of a stage."""

    def __init__(self, stage="", failing=-1):
        self.calls: list[tuple[str, int, int]] = []
        self._stage, self._failing = stage, failing

    def __call__(self, stage, done, total):
        assert threading.current_thread() is threading.main_thread() or stage in {"commit", "verify"}
        self.calls.append((stage, done, total))
        if stage == self._stage and len(self.of(stage)) == self._failing:
            raise RuntimeError("enough")

    def of(self, stage):
        """How far each call said it was."""
        return [done for name, done, _ in self.calls if name == stage]

    def total(self, stage):
        """The one total, which is reached in the end and not before it."""
        (total,) = {total for name, _, total in self.calls if name == stage}
        done = self.of(stage)
        assert done == sorted(done) and done[-1] == total > 0
        return total


def mixed(number):
    """Arrays of every size and form, and values that are larger than some of them."""
    block = torch.arange(40_000) + number
    return {
        "text": "x" * 20_000 + str(number),
        "small": torch.full((3,), number),
        "empty": torch.empty(0),
        "large": block,
        "tied": block,
        "turned": torch.arange(3_000).view(30, 100).t() * number,
        "numpy": block.numpy()[:700] * 2,
    }


@pytest.mark.parametrize("there", [False, True])
def test_a_commit_ends_with_all_bytes_of_its_arrays(tmp_path, there):
    with site_of(tmp_path / "store").open(chunk_bytes=CHUNK_BYTES) as store, FakeDevices() as devices:
        for step, number in enumerate([1, 1, 2]):
            held, callback = mixed(number), Callback("commit")
            if there:
                devices.put(held["large"])
            size = store.commit(held, step=step, progress=callback).logical_bytes
            handle = store.commit_async(held, step=step)
            handle.result()
            assert callback.total("commit") == handle.progress.done == handle.progress.total
            assert callback.total("commit") <= size


@pytest.fixture
def wasteful(tmp_path):
    """Step 1 needs a little of two packs; step 3 is deleted, and its pack is needed by nobody."""
    site = site_of(tmp_path / "store")
    with site.open(chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(*range(8)), step=0)
        store.commit(state(*range(10, 18)), step=1)
        store.commit(state(0, 10), step=2)
        for step in (0, 1):
            store.delete(step)
        store.plan_gc(grace=0).execute()
        store.commit(state(20, 21), step=3)
        store.delete(3)
    return site


def sizes_of(site):
    parts = site.parts()
    try:
        return {pack.name: pack.size for pack in parts.catalog.packs()}
    finally:
        parts.close()


def flip(site, *names):
    """Damage a payload of each of these packs."""
    for name in names:
        path = Path(site.url) / pack_key(name)
        data = bytearray(path.read_bytes())
        data[5000] ^= 8
        path.write_bytes(data)


@pytest.mark.parametrize("digest", ["xxh3_128", "sha256"])
def test_a_push_ends_with_all_bytes_of_its_commits(tmp_path, digest):
    source, target = site_of(tmp_path / "source"), site_of(tmp_path / "target")
    with source.open(chunk_bytes=CHUNK_BYTES) as store, target.open(digest=digest) as other:
        sizes = [store.commit(mixed(step), step=step).logical_bytes for step in range(3)]
        for steps, expected in ([1], sizes[1]), ([0, 1], sum(sizes[:2])), ([], sum(sizes)), ([2], sizes[2]):
            callback = Callback()
            store.push(other, *steps, progress=callback)
            assert callback.total("push") == expected
        assert len(callback.calls) == 1
        with pytest.raises(InvalidArgument, match="progress=5"):
            store.push(other, progress=5)  # type: ignore[arg-type]


# gc


def test_gc_counts_the_packs_that_it_looks_at_and_those_that_go(wasteful):
    sizes = sizes_of(wasteful)
    callback = Callback()
    with wasteful.open() as store:
        report = store.gc(grace=0, progress=callback)
    assert (report.rewritten, report.packs) == (2, 3)
    assert callback.total("gc") == report.freed_bytes
    assert len(callback.of("gc")) == 2  # what was garbage, and what was rewritten
    assert callback.total("plan") == sum(sorted(sizes.values())[-2:])
    assert [name for name, *_ in callback.calls] == ["plan", "gc", "gc"]


def test_a_plan_of_gc_and_its_execution_tell_each_of_their_own(wasteful):
    planned, done = Callback(), Callback()
    with wasteful.open() as store:
        plan = store.plan_gc(grace=0, progress=planned)
        plan.execute(progress=done)
        assert {name for name, *_ in planned.calls} == {"plan"}
        assert {name for name, *_ in done.calls} == {"gc"}
        assert done.total("gc") > 0
        nothing = Callback()
        store.gc(grace=0, progress=nothing)
        assert nothing.calls == []


def test_gc_counts_what_another_gc_took_meanwhile(wasteful):
    callback = Callback()
    taken: list[ckptstore.GcReport] = []

    def other(*call):
        callback(*call)
        if not taken:
            with wasteful.open() as store:
                taken.append(store.gc(grace=0))

    with wasteful.open() as store:
        report = store.plan_gc(grace=0).execute(other)
    assert (taken[0].rewritten, report.rewritten, report.packs) == (2, 0, 1)
    assert callback.total("gc") > report.freed_bytes


@pytest.mark.parametrize(("stage", "call"), [("plan", 1), ("gc", 1), ("gc", 2)])
def test_a_gc_that_is_stopped_is_done_by_the_next_one(wasteful, stage, call):
    with wasteful.open() as store:
        with pytest.raises(RuntimeError, match="enough"):
            store.gc(grace=0, progress=Callback(stage, call))
        assert_same(store.checkout(2), state(0, 10))
        assert store.verify().ok
        store.gc(grace=0)
        assert store.plan_gc(grace=0).rewrite == ()
        assert_same(store.checkout(2), state(0, 10))
    assert_nothing_leaked(wasteful)


def test_what_is_no_callback_stops_gc_before_it_begins(wasteful):
    with wasteful.open() as store:
        store.commit(state(30), step=4)
        plan = store.plan_gc(ckptstore.KeepLast(1), grace=0)
        for act in (store.plan_gc, store.gc, plan.execute):
            with pytest.raises(InvalidArgument, match="progress=5"):
                act(progress=5)
        assert store.steps() == [2, 4]
        assert store.plan_gc(grace=0).condemned.packs == plan.condemned.packs


# repair


@pytest.fixture
def damaged(tmp_path):
    """Of three packs, the first was retired when it was found damaged, and the second is damaged too by now."""
    site = site_of(tmp_path / "store")
    with site.open(chunk_bytes=CHUNK_BYTES) as store:
        for step in range(3):
            store.commit(state(step, 10 + step), step=step)
        first, second, _ = sizes_of(site)
        flip(site, first)
        store.repair()
    flip(site, second)
    return site


def test_repair_counts_the_packs_that_it_verifies_and_those_that_are_damaged(damaged):
    sizes = list(sizes_of(damaged).values())
    callback = Callback()
    with damaged.open() as store:
        report = store.repair(progress=callback)
    assert report.packs == 1 and len(report.lost) == 2
    assert callback.total("repair") == sum(sizes[:2])
    assert callback.of("repair") == [sizes[1], sum(sizes[:2])]
    assert {name for name, *_ in callback.calls} == {"verify", "repair"}


def test_a_whole_store_has_nothing_to_repair(wasteful):
    callback = Callback()
    with wasteful.open() as store:
        store.plan_repair().execute(callback)
    assert callback.calls == []


@pytest.mark.parametrize("call", [1, 2])
def test_a_repair_that_is_stopped_can_be_done_again(damaged, call):
    with damaged.open() as store:
        plan = store.plan_repair()
        with pytest.raises(RuntimeError, match="enough"):
            plan.execute(Callback("repair", call))
        assert store.repair().lost == plan.lost
        for step in range(2):
            store.commit(state(step, 10 + step), step=step, run="again")
        assert store.verify().ok
        assert store.plan_repair().lost == ()


def test_what_is_no_callback_stops_repair_before_it_begins(damaged):
    with damaged.open() as store:
        plan = store.plan_repair()
        with pytest.raises(InvalidArgument, match="progress=5"):
            plan.execute(progress=5)
        assert store.plan_repair() == plan


def test_what_does_nothing_more_is_reported_once():
    callback = Callback()
    advance = meter(callback, "commit", 5)
    for count in (0, 0, 3, 0, 2, 0):
        advance(count)
    assert callback.of("commit") == [0, 3, 5]
