"""Commits that are pushed to another store are there as they were made, and only what that store lacks crosses."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ckptstore
from ckptstore.chunkstore import windows, writer
from ckptstore.errors import (
    CorruptData,
    InvalidArgument,
    MissingData,
    RunNotFound,
    StepExists,
    StepNotFound,
    StorageError,
    StorageReadOnly,
)
from ckptstore.format import packs
from ckptstore.format.document import Origin
from ckptstore.operations import push
from ckptstore.operations.committing import publish
from ckptstore.storage.local import LocalStorage
from ckptstore.store import Store
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    assert_exact,
    assert_nothing_leaked,
    assert_whole,
    site_of,
    state_of,
)
from ckptstore.testing.catalog_faults import failing_catalog
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import FailNth, Latency, Recording
from ckptstore.testing.memory import peak_of
from ckptstore.testing.states import STATES

STEPS = 4
SEALED: dict[str, Any] = {"encrypt": True}
KINDS: dict[str, dict[str, Any]] = {
    "alike": {},
    "sha256": {"digest": "sha256"},
    "smaller chunks": {"chunk_bytes": 4096},
    "larger chunks": {"chunk_bytes": 1 << 20, "compression": "none"},
    "encrypted": SEALED,
    "encrypted blake3": {"digest": "blake3", "compression": "fast"} | SEALED,
}
UNLIKE = ["sha256", "encrypted"]


@pytest.fixture(autouse=True)
def _a_key(monkeypatch):
    monkeypatch.setenv("CKPTSTORE_KEY", "correct horse battery staple")


def made_store(place, steps, **settings):
    with site_of(place).open(**{"chunk_bytes": CHUNK_BYTES} | settings) as store:
        for step in steps:
            store.commit(state_of("main", step), step=step, metadata={"loss": step / 2})
    return place


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return made_store(tmp_path_factory.mktemp("push") / "store", range(STEPS))


@pytest.fixture
def place(template, tmp_path):
    return shutil.copytree(template, tmp_path / "source")


@pytest.fixture
def source(place):
    with site_of(place).open() as store:
        yield store


@pytest.fixture
def site(tmp_path):
    return site_of(tmp_path / "target")


@pytest.fixture
def target(site):
    with site.open() as store:
        yield store


@pytest.fixture
def targets(tmp_path):
    """Makes empty stores of a kind."""
    numbers = itertools.count()
    with ExitStack() as opened:

        def make(kind="alike", run="main"):
            site = site_of(tmp_path / f"target {next(numbers)}")
            return opened.enter_context(site.open(run, **{"chunk_bytes": CHUNK_BYTES} | KINDS[kind]))

        yield make


def log_of(store, run="main"):
    """What a log has of commits, but for what is each store's own."""
    return [
        (one.step, one.parent_ref, one.created, one.metadata, one.leaves, one.logical_bytes)
        for one in store._parts.catalog.commits(run)
    ]


def watched(store):
    """The store, with a storage that records what is asked of it."""
    recording = Recording(store._parts.storage)
    return Store(replace(store._parts, storage=recording), store.run), recording


# what arrives


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encrypted", [False, True], ids=["from plain", "from encrypted"])
def test_commits_arrive_as_they_are(tmp_path, place, targets, kind, encrypted):
    if encrypted:
        place = made_store(tmp_path / "sealed", range(STEPS), **SEALED)
    target = targets(kind)
    with site_of(place).open() as source:
        assert [made.step for made in source.push(target)] == [*range(STEPS)]
        assert log_of(target) == log_of(source)
        for step in range(STEPS):
            assert_exact(target, "main", step)
            assert source.manifest(step).manifest.containers == target.manifest(step).manifest.containers
            assert source.manifest(step).manifest.aliases == target.manifest(step).manifest.aliases != ()
        part = target.read(2, "model/frozen", index=slice(1000, 1100))
        assert_same(part, state_of("main", 2)["model"]["frozen"][1000:1100].clone())
        assert source.diff(1, 2).changed_bytes == target.diff(1, 2).changed_bytes
        assert target.verify().ok
        assert source.push(target) == []


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(state=STATES)
def test_any_state_arrives(tmp_path_factory, state):
    place = tmp_path_factory.mktemp("any")
    with (
        ckptstore.open(place / "source", chunk_bytes=4096) as source,
        ckptstore.open(place / "target", digest="sha256") as target,
    ):
        source.commit(state, step=0)
        (made,) = source.push(target)
        assert_same(target.checkout(0), source.checkout(0))
        assert made.leaves == source.find(0).leaves


def test_what_adam_made_arrives(tmp_path, targets):
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    with ckptstore.open(tmp_path / "source", compression="best") as source:
        for step in range(6):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter) * 0.01
            optimizer.step()
            source.commit({"model": model, "optimizer": optimizer}, step=step)
        catalog = source._parts.catalog
        assert 4 in {chunk.codec for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)}
        for kind in ("alike", "encrypted"):
            target = targets(kind)
            assert len(source.push(target, 5, 3, 4)) == 3
            for step in (3, 4, 5):
                assert_same(target.checkout(step), source.checkout(step))
            assert target.verify().ok


def test_what_changed_rests_on_what_the_target_has(source, targets):
    """Also where the parent was not pushed."""
    target = targets()
    _, first = source.push(target, 0, 1)
    (third,) = source.push(target, 3)
    assert (first.parent_ref, third.parent_ref) == ("main@0", None)
    assert max(first.new_bytes, third.new_bytes) < 0.38 * source.find(0).new_bytes
    catalog = target._parts.catalog
    assert any(chunk.base for pack in catalog.packs(third.id) for chunk in catalog.pack_chunks(pack.name))


def test_numbers_become_as_small_as_in_a_commit(tmp_path):
    torch.manual_seed(0)
    state = {"w": 0.02 * torch.randn(50_000), "b": torch.randn(50_000).bfloat16(), "n": torch.randn(50_000).numpy()}
    with (
        ckptstore.open(tmp_path / "source", compression="none") as source,
        ckptstore.open(tmp_path / "target", compression="best") as target,
        ckptstore.open(tmp_path / "other", compression="best") as other,
    ):
        source.commit(state, step=0)
        (pushed,) = source.push(target)
        committed = other.commit(state, step=0)
    assert abs(pushed.new_bytes - committed.new_bytes) < 1000 < 0.1 * (committed.logical_bytes - committed.new_bytes)


# what crosses


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_target_has_is_not_read(source, targets, kind):
    target = targets(kind)
    source.push(target, 1)
    source, reading = watched(source)
    target, writing = watched(target)
    source.push(target, 2)
    changed = source.diff(1, 2).changed_bytes
    assert 0 < reading.read <= 1.3 * changed < 0.7 * source.find(2).logical_bytes  # with what chunks rest on
    assert writing.written <= changed + 8000
    before = reading.read, writing.written
    for _ in range(2):
        assert source.push(target, 1, 2) == []
    assert (reading.read, writing.written) == before


def test_chunks_of_other_commits_are_not_read(source, targets):
    target = targets()
    for step in range(STEPS):
        target.commit(state_of("main", step), step=step, run="other")
    source, reading = watched(source)
    assert len(source.push(target)) == STEPS
    assert reading.read == 0
    assert_exact(target, "main", 3)


@pytest.mark.parametrize("kind", UNLIKE)
def test_the_same_commit_of_somebody_else_is_found_by_reading(source, targets, kind):
    target = targets(kind)
    target.commit(state_of("main", 1), step=1, metadata={"by": "hand"})
    target, writing = watched(target)
    assert source.push(target, 1) == []
    assert writing.written < 2000
    assert target.find(1).metadata == {"by": "hand"}


def test_copies_of_copies_are_known(source, targets):
    """Also where digests say nothing."""
    sealed = targets("encrypted")
    source.push(sealed)
    for kind in ("sha256", "encrypted"):
        target = targets(kind)
        assert len(sealed.push(target)) == STEPS
        assert source.push(target) == []
    source, reading = watched(source)
    assert sealed.push(source) == target.push(source) == source.push(target) == []
    assert (reading.read, reading.written) == (0, 0)


SIZE = 256 << 10


@pytest.mark.parametrize("kind", ["alike", "encrypted"])
def test_a_push_holds_a_few_packs_and_batches(tmp_path, targets, monkeypatch, kind):
    whole, pack, batch = 64 * SIZE, 4 * SIZE, 4 * SIZE
    monkeypatch.setattr(packs, "TARGET_BYTES", pack)
    monkeypatch.setattr(windows, "COPIES", batch)
    monkeypatch.setattr(push, "_BATCH_BYTES", batch)
    target = targets(kind)
    slow = Store(replace(target._parts, storage=Latency(target._parts.storage, 0.03), compression="none"), "main")
    with ckptstore.open(tmp_path / "source", chunk_bytes=SIZE) as source:
        for step in range(2):
            source.commit({"w": torch.rand(whole // 4)}, step=step)
        source.push(slow, 0)
        peak = peak_of(lambda: source.push(slow, 1))
        assert peak < 3 * pack + 3 * batch + SIZE < whole / 2
        assert_same(target.checkout(1), source.checkout(1))


def test_what_is_pushed_fills_its_packs(tmp_path, targets, monkeypatch):
    monkeypatch.setattr(windows, "COPIES", SIZE)
    monkeypatch.setattr(writer, "_SOON", SIZE)
    target = targets()
    with ckptstore.open(tmp_path / "source", chunk_bytes=SIZE) as source:
        source.commit({"w": torch.rand(2 * SIZE)}, step=0)
        source.push(target)
    assert len(list(target._parts.storage.list("packs/"))) == 1


# where to


def test_the_run_is_that_of_the_commit_or_the_one_that_is_named(source, targets):
    target = targets(run="whatever")
    source.commit(state_of("side", 7), step=7, run="side", parent="main@2")
    source.push(target, 2, "side@7")
    assert [(run.name, run.latest, run.forked_from) for run in target.runs()] == [
        ("main", 2, None),
        ("side", 7, "main@2"),
    ]
    (made,) = source.push(target, "side@latest", run="mine")
    assert (made.run, made.step, made.parent_ref) == ("mine", 7, "main@2")
    assert_same(target.checkout("mine@7"), state_of("side", 7))


def test_a_commit_is_pushed_by_any_of_its_names_and_once(source, targets):
    target = targets()
    source.tag("best", 1)
    assert [made.step for made in source.push(target, "latest", "best", 1, source.find(1), "main@best")] == [1, 3]
    assert target.tags() == {}
    assert (target.find(1).parent_ref, target.find(3).parent_ref) == (None, None)


def test_a_run_of_the_same_store_is_a_fork(source):
    source, storing = watched(source)
    assert [made.parent_ref for made in source.push(source, 2, 3, run="fork")] == ["main@1", "fork@2"]
    assert (storing.read, storing.operations["put"]) == (0, 2)
    assert_same(source.checkout("fork@3"), state_of("main", 3))
    assert [run.forked_from for run in source.runs()] == ["main@1", None]
    assert source.verify().ok


def test_a_copy_of_the_store_is_another_one(place, source, tmp_path):
    copy = shutil.copytree(place, tmp_path / "copy")
    source.commit(state_of("main", 9), step=9)
    with site_of(copy).open() as target:
        assert [made.step for made in source.push(target)] == [9]
    assert ("main", 9) in assert_whole(copy)


def test_what_cannot_be_is_refused(source, targets, tmp_path):
    target = targets()
    for wrong in ("s3://bucket/llm", target._parts, None):
        with pytest.raises(InvalidArgument, match="give an open store"):
            source.push(wrong)
    with pytest.raises(InvalidArgument, match=r"main@0 cannot be pushed to where it is.*another run"):
        source.push(source)
    with pytest.raises(InvalidArgument, match="run 'a@b'"):
        source.push(target, run="a@b")
    with pytest.raises(StepNotFound):
        source.push(target, 1, 77)
    with (
        ckptstore.open(source.url, run="typo") as other,
        pytest.raises(RunNotFound, match="typo"),
    ):
        other.push(target)
    assert target.runs() == []
    with ckptstore.open(target.url, read_only=True) as closed, pytest.raises(StorageReadOnly):
        source.push(closed)


def test_a_source_without_a_catalog_will_do(place, targets):
    target = targets()
    (place / "catalog.sqlite").unlink()
    with ckptstore.open(place, read_only=True) as source:
        assert len(source.push(target)) == STEPS
    assert_exact(target, "main", 3)


def test_between_places_of_every_kind(source, sites):
    site = sites()
    with site.open(chunk_bytes=8192) as target:
        assert len(source.push(target, 0, 1)) == 2
    with site.open() as target:
        assert [made.step for made in source.push(target)] == [2, 3]
        assert log_of(target) == log_of(source)
    assert len(assert_whole(site)) == STEPS
    assert_nothing_leaked(site)


# another state at the step


@pytest.mark.parametrize("kind", ["alike", *UNLIKE])
def test_another_state_at_a_step_is_reported_and_what_came_before_stays(source, targets, kind):
    target = targets(kind)
    target.commit({"other": torch.rand(5000)}, step=2)
    with pytest.raises(StepExists, match=r"step 2 of run 'main' of .*target 0 .*than main@2: push into another run"):
        source.push(target)
    assert target.steps() == [0, 1, 2]
    assert_same(target.checkout(1), state_of("main", 1))
    watching, reading = watched(source)
    with pytest.raises(StepExists):
        watching.push(target, 2, 3)
    assert target.steps() == [0, 1, 2]
    assert (reading.read == 0) == (kind == "alike")
    assert len(source.push(target, run="mine")) == STEPS
    assert target.verify().ok
    assert_nothing_leaked(target.url)


@pytest.mark.parametrize("kind", ["alike", *UNLIKE])
def test_another_state_of_the_same_tensors_is_reported_too(source, targets, kind):
    target = targets(kind)
    target.commit(state_of("main", 1) | {"step": 2}, step=1)
    with pytest.raises(StepExists, match="step 1"):
        source.push(target, 1)
    assert target.checkout(1)["step"] == 2
    assert_nothing_leaked(target.url)


def test_a_deleted_step_is_pushed_again(source, targets):
    target = targets("sha256")
    source.push(target, 1)
    target.delete(1)
    assert [made.step for made in source.push(target, 1)] == [1]
    assert_exact(target, "main", 1)


# failures


@pytest.mark.parametrize("kind", ["alike", "encrypted"])
def test_what_fails_on_the_way_is_pushed_again(source, site, targets, kind):
    target = targets(kind)
    for n in itertools.count(1):
        failing = FailNth(target._parts.storage, n, after=bool(n % 2))
        try:
            source.push(Store(replace(target._parts, storage=failing), "main"))
        except StorageError:
            assert failing.failed
            for step in target.steps():
                assert_exact(target, "main", step)
            assert target.verify().ok
        if not failing.failed:
            break
    assert n > 3
    assert log_of(target) == log_of(source)
    assert_nothing_leaked(target.url)


@pytest.mark.parametrize("after", [False, True])
def test_a_catalog_that_fails_on_the_way_leaves_whole_commits(source, targets, after):
    target = targets("sha256")
    for n in itertools.count(1):
        catalog, failing = failing_catalog(target._parts.catalog, n, after=after)
        try:
            source.push(Store(replace(target._parts, catalog=catalog), "main"))
        except ckptstore.CatalogError:
            assert failing.failed
        for step in target.steps():
            assert_exact(target, "main", step)
        if not failing.failed:
            break
    assert n > 3
    assert target.steps() == [*range(STEPS)]
    assert target.verify().ok
    assert_nothing_leaked(target.url)


KILLED = """
import json, os, signal, sys
from ckptstore.testing.audit import site_of
source, target, left = json.loads(sys.argv[1])

def progress(stage, done, total):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

with site_of(source).open() as store, site_of(target).open(chunk_bytes=4096) as other:
    store.push(other, progress=progress)
"""


@pytest.mark.crash
def test_a_killed_push_is_pushed_again(place, site):
    for calls in (3, 20, 1000):
        arguments = json.dumps([str(place), site.url, calls])
        done = subprocess.run([sys.executable, "-c", KILLED, arguments], capture_output=True, text=True, check=False)
        assert done.returncode == (0 if calls == 1000 else -signal.SIGKILL), done.stderr
        with site.open() as target:
            for step in target.steps():
                assert_exact(target, "main", step)
    assert len(assert_whole(site)) == STEPS
    assert_nothing_leaked(site)


def test_a_callback_that_raises_ends_it_between_whole_commits(source, target):
    def progress(stage, done, total):
        if done > 2.5 * total / STEPS:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        source.push(target, progress=progress)
    assert target.steps() == [0, 1]
    assert [made.step for made in source.push(target)] == [2, 3]
    assert_nothing_leaked(target.url)


@pytest.mark.parametrize("kind", ["alike", *UNLIKE])
def test_damage_is_reported_with_its_path_and_does_not_arrive(place, targets, kind):
    target = targets(kind)
    with site_of(place).open() as source:
        parts = source._parts
        digest = source.manifest(2)["model/own"].chunks[:16]
        location = parts.catalog.locate([digest])[digest]
        pack = place / "packs" / location.pack[:2] / f"{location.pack}.pack"
        data = bytearray(pack.read_bytes())
        data[location.offset + location.length // 2] ^= 8
        pack.write_bytes(data)
        with pytest.raises(CorruptData, match="main@2 model/own"):
            source.push(target)
        assert target.steps() == [0, 1]
        pack.unlink()
        parts.close()
        with pytest.raises(MissingData, match="main@2 "):
            source.push(target)
        assert target.steps() == [0, 1]
        with pytest.raises(CorruptData):
            source.push(target, 2)
        assert source.push(target, 0, 1) == []
    assert target.verify().ok
    assert_nothing_leaked(target.url)


def test_two_that_push_the_same_both_succeed(place, site):
    begin = threading.Barrier(2)

    def work(_):
        with site_of(place).open() as source, site.open() as target:
            begin.wait()
            return source.push(target)

    site.open().close()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    assert {made.step for pushed in found for made in pushed} == {*range(STEPS)}
    assert len(assert_whole(site)) == STEPS
    assert_nothing_leaked(site)


# afterwards


@pytest.mark.parametrize("kind", ["alike", "smaller chunks", "encrypted"])
def test_the_target_is_a_store_like_any(source, targets, kind):
    target = targets(kind)
    source.push(target)
    target.commit(state_of("main", STEPS), step=STEPS)
    assert target.find(STEPS).parent_ref == f"main@{STEPS - 1}"
    target.gc(ckptstore.KeepEvery(2), grace=0)
    target.gc(grace=0)
    assert target.steps() == [0, 2, 4]
    for step in target.steps():
        assert_exact(target, "main", step)
    assert target.verify().ok
    assert_nothing_leaked(target.url)
    assert [made.step for made in source.push(target)] == [1, 3]
    assert target.verify().ok


@pytest.mark.parametrize("kind", ["alike", "sha256"])
def test_a_rebuilt_catalog_knows_copies_as_they_were(source, targets, kind):
    target = targets(kind)
    source.push(target)
    before = log_of(target)
    target.close()
    (Path(target.url) / "catalog.sqlite").unlink()
    assert ckptstore.rebuild_catalog(target.url).commits == STEPS
    assert log_of(target) == before == log_of(source)
    assert source.push(target) == []


def test_a_rebuilt_catalog_takes_the_copy_and_not_what_was_deleted_before(source, targets):
    """Though that was made later than the commit of which it is a copy."""
    target = targets()
    target.commit({"wrong": 1}, step=1)
    target.delete(1)
    source.push(target, 1)
    target.close()
    (Path(target.url) / "catalog.sqlite").unlink()
    report = ckptstore.rebuild_catalog(target.url)
    assert (report.commits, len(report.left_out)) == (1, 1)
    assert_exact(target, "main", 1)


@pytest.mark.parametrize("kind", ["alike", "sha256"])
def test_what_the_target_has_lost_is_brought_back(source, targets, kind):
    target = targets(kind)
    source.push(target)
    for pack in Path(target.url).glob("packs/*/*.pack"):
        pack.unlink()
    assert target.repair().lost
    assert source.push(target) == []
    for step in range(STEPS):
        assert_exact(target, "main", step)
    assert target.verify().ok
    assert target.plan_repair().lost == ()


def test_chunks_larger_than_those_of_the_target_are_mended_there_too(source, targets, tmp_path):
    target = targets("smaller chunks")
    source.push(target)
    folder = Path(target.url) / "packs"
    shutil.copytree(folder, tmp_path / "backup")
    for pack in folder.glob("*/*.pack"):
        pack.unlink()
    assert target.repair().lost
    shutil.copytree(tmp_path / "backup", folder, dirs_exist_ok=True)
    assert target.repair().lost == ()
    for step in range(STEPS):
        assert_exact(target, "main", step)


def test_a_copy_names_the_first_commit(source, targets):
    one, two = targets("encrypted"), targets()
    source.push(one, 1)
    one.push(two, 1)
    made = source.find(1)
    for store in (one, two):
        copy = store.find(1)
        document = store._parts.decode_document(store._parts.catalog.manifest(copy.id), copy.document)
        assert document.origin == Origin(made.id, made.created)
        assert copy.id != made.id


def test_two_places_of_one_name_are_two(place, tmp_path, monkeypatch):
    """As `s3://bucket/llm` on two servers."""
    monkeypatch.setattr(LocalStorage, "url", property(lambda _: "s3://bucket/llm"))
    with site_of(place).open() as source, site_of(tmp_path / "other").open() as target:
        assert [commit.step for commit in source.push(target)] == list(range(STEPS))
        with pytest.raises(InvalidArgument, match=r"main@0 cannot be pushed to where it is"):
            source.push(source)


@pytest.fixture
def fork(place, source):
    """A run that begins anew, at step 0, on top of a higher step."""
    with site_of(place).open(run="tune") as tune:
        for step in range(2):
            parent = "main@3" if step == 0 else None
            tune.commit(state_of("tune", step), step=step, parent=parent)
    return source


@pytest.mark.parametrize("names", [["tune@0", "tune@1", "main@3"], ["main@3", "main@2", "tune@1", "tune@0"]], ids=str)
def test_a_fork_arrives_behind_what_it_is_a_fork_of(fork, targets, names):
    target = targets()
    fork.push(target, *names)
    assert target.find("tune@0").parent_ref == "main@3"
    assert target.find("tune@1").parent_ref == "tune@0"
    (tune,) = (run for run in target.runs() if run.name == "tune")
    assert tune.forked_from == "main@3"


def test_a_parent_in_the_same_run_is_a_lower_step(fork, targets):
    target = targets()
    fork.push(target, 3)
    (made,) = fork.push(target, "tune@0", run="main")
    assert made.parent is None


def test_a_named_step_that_is_purged_meanwhile_is_reported(place, source, targets):
    def progress(*_):
        with site_of(place).open() as retention:
            retention.gc(keep=ckptstore.KeepLast(1), grace=0)

    target = targets()
    with pytest.raises(StepNotFound, match="main@1 was deleted while it was pushed"):
        source.push(target, 0, 1, 2, progress=progress)
    assert target.steps() == [0]
    assert target.verify().ok


@pytest.mark.parametrize("kind", ["alike", "sha256"])
@pytest.mark.parametrize("at", [0, 1], ids=["before it is read", "while it is read"])
def test_what_is_purged_meanwhile_is_left_out(place, source, targets, monkeypatch, kind, at):
    monkeypatch.setattr(push, "_BATCH_BYTES", 1)
    calls = itertools.count()

    def progress(*_):
        if next(calls) == at:
            with site_of(place).open() as retention:
                retention.gc(keep=ckptstore.KeepLast(1), grace=0)

    target = targets(kind)
    pushed = source.push(target, progress=progress)
    assert source.steps() == [STEPS - 1]
    assert [commit.step for commit in pushed] == target.steps()
    assert STEPS - 1 in target.steps()
    assert target.verify().ok
    assert_same(target.checkout(STEPS - 1), source.checkout(STEPS - 1))


@pytest.mark.parametrize("kind", ["alike", "sha256"])
def test_another_state_of_the_same_chunks_is_reported_alike(source, targets, kind):
    weight = torch.rand(5_000)
    source.commit({"a": weight}, step=9)
    target = targets(kind)
    target.commit({"b": weight}, step=9)
    with pytest.raises(StepExists, match=r"step 9 of run 'main' of .* another state than main@9: push into"):
        source.push(target, 9)


def test_a_chunk_of_two_sizes_does_not_arrive(source, targets, monkeypatch):
    real = publish.new_commit

    def hostile(chunks, manifest, *rest):
        entries = dict(manifest.entries)
        entries["b"] = msgspec.structs.replace(entries["b"], chunks=entries["a"].chunks)
        return real(chunks, msgspec.structs.replace(manifest, entries=entries), *rest)

    monkeypatch.setattr("ckptstore.operations.committing.commit.new_commit", hostile)
    source.commit({"a": torch.arange(100.0), "b": torch.arange(200.0)}, step=9)
    target = targets()
    with pytest.raises(CorruptData, match="main@9 b"):
        source.push(target, 9)
    assert target.steps() == []
