"""Random use of a store beside a dict: nothing is lost and nothing leaked, whatever comes after whatever."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import ckptstore
from ckptstore.errors import GcRefused, StepExists, StepProtected, StorageError
from ckptstore.format.packs import pack_key
from ckptstore.store import Store
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    Site,
    assert_nothing_leaked,
    drifting,
    expire_sessions,
    files,
    needed_of,
    unheld,
)
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth

RUN = "main"
STEPS = st.integers(0, 5)
CONTENTS = st.tuples(st.integers(0, 2), st.integers(0, 2))
POLICIES = st.sampled_from([None, ckptstore.KeepLast(1), ckptstore.KeepLast(2), ckptstore.KeepEvery(2)])
TAGS = st.sampled_from(["best", "good"])


def state_of(content):
    first, second = (drifting(f"{name} {number}") for name, number in zip("ab", content, strict=True))
    return {"first": first, "inner": {"second": second, "tie": first}, "content": content}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self, site):
        super().__init__()
        self.site = site
        self.store = site.open(chunk_bytes=CHUNK_BYTES)
        self.parts = site.parts()
        self.live: dict[int, tuple[int, int]] = {}
        self.deleted: list[tuple[int, tuple[int, int]]] = []
        self.tags: dict[str, int] = {}
        self.abandoned = False

    def teardown(self):
        assert_nothing_leaked(self.site)
        self.nothing_is_lost()
        self.store.close()
        self.parts.catalog.close()

    @rule(step=STEPS, content=CONTENTS, in_background=st.booleans())
    def commit(self, step, content, in_background):
        def act():
            if in_background:
                return self.store.commit_async(state_of(content), step=step).result()
            return self.store.commit(state_of(content), step=step)

        if self.live.get(step, content) != content:
            with pytest.raises(StepExists):
                act()
        else:
            assert act().step == step
            self.live[step] = content

    @rule(step=STEPS, content=CONTENTS, n=st.integers(1, 3), after=st.booleans())
    def crash_in_commit(self, step, content, n, after):
        """A writer dies in the middle: its session stays open until its lease runs out."""
        if step not in self.live:
            with self.failing_store(n, after, {"end_session"}) as store:
                try:
                    store.commit(state_of(content), step=step)
                    self.live[step] = content
                except StorageError:
                    self.abandoned = True

    @rule(n=st.integers(1, 6), after=st.booleans())
    def crash_in_gc(self, n, after):
        with self.failing_store(n, after) as store:
            try:
                store.gc(grace=0)
                self.deleted.clear()
            except StorageError:
                self.deleted = [one for one in self.deleted if one[0] in self.steps_in_catalog(deleted=True)]

    @precondition(lambda self: self.abandoned)
    @rule()
    def leases_run_out(self):
        expire_sessions(self.site)
        self.store.gc(grace=3600)
        self.abandoned = False

    @precondition(lambda self: self.live)
    @rule(data=st.data(), start=st.integers(0, 8192), length=st.integers(0, 8192))
    def read(self, data, start, length):
        step = data.draw(st.sampled_from(sorted(self.live)))
        part = slice(start, start + length)
        expected = state_of(self.live[step])["inner"]["second"][part].clone()
        assert_same(self.store.read(step, "inner/second", index=part), expected)

    @precondition(lambda self: self.live)
    @rule(name=TAGS, data=st.data())
    def tag(self, name, data):
        step = data.draw(st.sampled_from(sorted(self.live)))
        self.store.tag(name, step)
        self.tags[name] = step

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def untag(self, data):
        name = data.draw(st.sampled_from(sorted(self.tags)))
        self.store.untag(name)
        del self.tags[name]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def delete(self, data):
        step = data.draw(st.sampled_from(sorted(self.live)))
        if step in self.tags.values():
            with pytest.raises(StepProtected):
                self.store.delete(step)
        else:
            self.store.delete(step)
            self.deleted.append((step, self.live.pop(step)))

    @precondition(lambda self: self.deleted)
    @rule(data=st.data())
    def restore(self, data):
        step, _ = data.draw(st.sampled_from(self.deleted))
        if step in self.live:
            with pytest.raises(StepExists):
                self.store.restore(step)
        else:
            assert self.store.restore(step).step == step
            last = max(at for at, (deleted, _) in enumerate(self.deleted) if deleted == step)
            self.live[step] = self.deleted.pop(last)[1]

    @precondition(lambda self: self.live)
    @rule(policy=POLICIES, grace=st.sampled_from([0, 3600]), sweep=st.booleans())
    def gc(self, policy, grace, sweep):
        kept = self.kept_by(policy)
        if not kept:
            with pytest.raises(GcRefused):
                self.store.plan_gc(keep=policy, grace=grace)
            return
        plan = self.store.plan_gc(keep=policy, grace=grace, sweep=sweep)
        assert {commit.step for commit in plan.delete} == set(self.live) - kept - set(self.tags.values())
        report = plan.execute()
        assert set(report.deleted) == {commit.step for commit in plan.delete}
        self.deleted += [(step, self.live.pop(step)) for step in report.deleted]
        if grace == 0:
            self.deleted.clear()
            stored = files(self.site)
            assert self.abandoned or stored == needed_of(stored, self.parts.catalog)

    def kept_by(self, policy):
        if isinstance(policy, ckptstore.KeepLast):
            return set(sorted(self.live)[-policy.count :])
        if isinstance(policy, ckptstore.KeepEvery):
            return {step for step in self.live if step % policy.interval == 0}
        return set(self.live)

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.site.open()

    @invariant()
    def nothing_is_lost(self):
        assert self.store.steps() == sorted(self.live)
        assert self.store.tags() == self.tags
        for step, content in self.live.items():
            assert_same(self.store.checkout(step), state_of(content))
        report = self.store.verify()  # also of what can be restored
        assert report.ok, report.problems
        assert unheld(self.parts) == set()

    @invariant()
    def nothing_is_leaked(self):
        """Every file is needed, or known to the catalog as garbage: a dead writer's once its lease is over."""
        stored = files(self.site)
        needed = needed_of(stored, self.parts.catalog)
        assert needed <= stored
        if not self.abandoned:
            garbage = self.parts.catalog.garbage(0)
            assert stored - needed <= {*garbage.documents, *map(pack_key, garbage.packs)}

    def steps_in_catalog(self, *, deleted):
        return {commit.step for commit in self.store.log(deleted=deleted) if (commit.deleted is not None) == deleted}

    def failing_store(self, n, after, ignored=()):
        """A store on the same place whose nth storage operation that changes something fails."""
        parts = self.site.parts()
        for name in ignored:
            setattr(parts.catalog, name, lambda *_: None)
        storage = FailNth(parts.storage, n, after=after, verbs=frozenset({"put", "delete"}))
        return Store(replace(parts, storage=storage), RUN)


@pytest.mark.timeout(900)  # shrinking a failure takes minutes
def test_random_use(sites, tmp_path):
    here = sites().url.startswith(str(tmp_path))
    run_state_machine_as_test(
        lambda: StoreMachine(sites()),  # type: ignore[arg-type]  # a maker will do
        settings=settings(
            max_examples=8 if here else 3,  # each operation on a server takes a hundred times as long
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)
def test_random_use_of_an_encrypted_store(tmp_path, catalogs, monkeypatch):
    monkeypatch.setenv("CKPTSTORE_KEY", "correct horse battery staple")

    def site():
        made = Site(str(tmp_path / uuid.uuid4().hex), catalogs())
        made.open(chunk_bytes=CHUNK_BYTES, encrypt=True).close()
        return made

    run_state_machine_as_test(
        lambda: StoreMachine(site()),  # type: ignore[arg-type]  # a maker will do
        settings=settings(
            max_examples=4, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
