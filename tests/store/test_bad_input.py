"""What a user can do wrong: the error says what and what to do, nothing is half-made, every earlier step readable."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import ckptstore
from ckptstore.errors import (
    CatalogLocation,
    InvalidArgument,
    NotAStore,
    PathNotFound,
    PickleRefused,
    RunNotFound,
    SchemaTooNew,
    SchemaTooOld,
    StateMismatch,
    StepExists,
    StepNotFound,
    StepProtected,
    StorageError,
    StorageReadOnly,
    StoreTooNew,
    TagNotFound,
    UnsupportedLeaf,
)
from ckptstore.format import version
from ckptstore.opening import catalogs
from ckptstore.testing.audit import CHUNK_BYTES, assert_exact, assert_nothing_leaked, assert_whole, files, state_of
from ckptstore.testing.equality import assert_same

STEPS = {("main", 100), ("main", 200)}
NOBODY = 65534


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(place):
    """Steps 100, tagged "best", and 200. Whatever a test does wrong, at its end the store is as it was."""
    with ckptstore.open(place, chunk_bytes=CHUNK_BYTES) as made:
        for step in (100, 200):
            made.commit(state_of("main", step), step=step)
        made.tag("best", 100)
        before = files(place)
        yield made
    assert assert_whole(place) == STEPS
    assert_nothing_leaked(place)
    assert files(place) == before


# steps, runs, tags, paths


def test_a_step_that_exists_with_other_content(store):
    for commit in (store.commit, lambda state, step: store.commit_async(state, step=step).result()):
        with pytest.raises(StepExists, match="step 100 of run 'main' holds another state: commit to a new step"):
            commit(state_of("main", 300), step=100)
        with pytest.raises(StepExists, match="commit to a new step"):
            commit({"nothing": "that needs a chunk"}, step=100)
        assert commit(state_of("main", 100), step=100).id == store.find(100).id


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (-1, "step -1: give one from 0 to"),
        (1 << 63, "give one from 0 to 2"),
        (True, "step True is a bool: give an int"),
        (1.0, "step 1.0 is a float: give an int"),
        ("100", "step '100' is a str: give an int"),
        (None, "step None is a NoneType: give an int"),
        (torch.tensor(1.5), "give an int"),
        (torch.tensor(True), "give an int"),
        (np.True_, "give an int"),
        (torch.tensor(1, device="meta"), "give an int"),
        (torch.tensor([5]), "is a Tensor: give an int"),
    ],
)
def test_a_step_that_is_none(store, step, message):
    for commit in (store.commit, store.commit_async):
        with pytest.raises(InvalidArgument, match=message):
            commit(state_of("main", 300), step=step)


@pytest.mark.parametrize("globs", [3, b"model", ["model", None], torch.tensor(1), np.array(1)], ids=repr)
def test_globs_that_are_none(store, globs):
    with pytest.raises(InvalidArgument, match=re.escape(f"paths={globs!r}: give a glob of logical paths")):
        store.checkout(100, paths=globs)
    for commit in (store.commit, store.commit_async):
        with pytest.raises(InvalidArgument, match=re.escape(f"replicated={globs!r}: give a glob of logical paths")):
            commit(state_of("main", 300), step=300, replicated=globs)


@pytest.mark.parametrize("take_along", [pickle.dumps, copy.deepcopy])
def test_a_store_that_is_taken_elsewhere_is_told_what_to_do(store, take_along):
    with pytest.raises(InvalidArgument, match="open it where it is needed"):
        take_along(store)


@pytest.mark.parametrize("step", [300, np.int32(300), torch.tensor(300), (1 << 63) - 1, 0])
def test_steps_that_are_good(place, step):
    with ckptstore.open(place) as store:
        assert store.commit({"x": 1}, step=step).step == int(step) == store.latest()


ASKING = [
    lambda store, ref: store.checkout(ref),
    lambda store, ref: store.read(ref, "step"),
    lambda store, ref: store.manifest(ref),
    lambda store, ref: store.find(ref),
    lambda store, ref: store.tag("new", ref),
    lambda store, ref: store.delete(ref),
    lambda store, ref: store.diff(ref, 100),
    lambda store, ref: store.commit(state_of("main", 300), step=300, parent=ref),
]


@pytest.mark.parametrize(
    ("ref", "kind", "message"),
    [
        (101, StepNotFound, "run 'main' has no step 101; nearest: 1"),
        ("250", StepNotFound, "run 'main' has no step 250; nearest: .*200"),
        ("bset", TagNotFound, "run 'main' has no tag 'bset'; nearest: best"),
        ("mian@100", RunNotFound, "no run 'mian'; nearest: main"),
        ("main@bset", TagNotFound, "nearest: best"),
        (-5, InvalidArgument, "step -5"),
        (1.5, InvalidArgument, "step 1.5 is a float"),
        ([100, 101], InvalidArgument, "is a list: give one, a number, a tag or a commit"),
        (torch.tensor([100]), InvalidArgument, "is a Tensor: give one"),
        ("best\0", InvalidArgument, "has a NUL character"),
        ("main\0@100", InvalidArgument, "has a NUL character"),
    ],
)
def test_a_commit_that_does_not_exist(store, ref, kind, message):
    for ask in ASKING:
        with pytest.raises(kind, match=message):
            ask(store, ref)


@pytest.mark.parametrize("ref", [np.int64(100), np.array(100), torch.tensor(100)])
def test_a_step_in_an_array_without_dims_is_one(store, ref):
    assert store.find(ref) == store.find(100)


def test_other_names_that_do_not_exist(store):
    with pytest.raises(TagNotFound, match="nearest: best"):
        store.untag("bets")
    with pytest.raises(StepNotFound, match="no deleted step 100"):
        store.restore(100)
    with pytest.raises(StepProtected, match="the tag 'best' holds step 100 of run 'main': remove or move the tag"):
        store.delete(100)


@pytest.mark.parametrize(
    "ask", [lambda store, path: store.read(100, path), lambda store, path: store.manifest(100)[path]]
)
def test_a_path_that_does_not_exist(store, ask):
    with pytest.raises(PathNotFound, match="main@100 has no path 'model/forzen'; nearest: model/frozen"):
        ask(store, "model/forzen")


def test_globs_that_select_nothing(store):
    with pytest.raises(PathNotFound, match="mode/"):
        store.checkout(100, paths="mode/*")


@pytest.mark.parametrize("name", ["", "a@b", "latest", "12", " a", "a\n", "x" * 201, 7])
def test_names_that_cannot_be(store, place, name):
    for act in (
        lambda: store.tag(name, 100),
        lambda: store.untag(name),
        lambda: store.commit(state_of("main", 300), step=300, run=name),
        lambda: ckptstore.open(place, run=name),
    ):
        with pytest.raises(InvalidArgument, match=r"give a name|a name has no"):
            act()


class Scalar:
    shape = ()


@pytest.mark.parametrize(
    "metadata",
    [{"a": object()}, {1: 2}, [1], {"a": {"b": torch.rand(2)}}, {"a": torch.tensor(1, device="meta")}, {"a": Scalar()}],
)
def test_metadata_that_is_not_json(store, metadata):
    with pytest.raises(InvalidArgument, match="metadata"):
        store.commit(state_of("main", 300), step=300, metadata=metadata)


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"b": {None: 1, "null": 2}}], {True: 1, "true": 2}])
def test_metadata_with_keys_that_are_one_in_json(store, value):
    with pytest.raises(InvalidArgument, match=r"two keys of a dict are .* in JSON"):
        store.commit(state_of("main", 300), step=300, metadata={"a": value})


def test_numbers_as_keys_of_metadata_come_back_as_text(place):
    with ckptstore.open(place) as store:
        assert store.commit(state_of("main", 300), step=300, metadata={"a": {1: 2}}).metadata == {"a": {"1": 2}}


@pytest.mark.parametrize("grace", [10**400, -1, float("nan"), "1"])
def test_a_grace_that_is_none(store, grace):
    for act in (store.gc, store.plan_gc, partial(ckptstore.CheckpointManager, store, 1)):
        with pytest.raises(InvalidArgument, match="give 0 or more seconds"):
            act(grace=grace)


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = {"b": made}
    return made


@pytest.mark.parametrize("depth", [101, 500, 980, 5000])
def test_metadata_that_is_nested_too_deep(store, depth):
    with pytest.raises(InvalidArgument, match=r"metadata 'a' is n"):
        store.commit(state_of("main", 300), step=300, metadata={"a": nested(depth)})


def test_metadata_that_is_nested_as_deep_as_it_may_be(place):
    with ckptstore.open(place) as store:
        store.commit(state_of("main", 300), step=300, metadata={"a": nested(100)})
        assert store.log()[0].metadata == {"a": nested(100)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"catalog": Path("/x/catalog.sqlite")}, "no database URL: give sqlite:///path"),
        ({"catalog": 5}, "no database URL: give sqlite:///path"),
        (
            {"catalog": "sqlite+aiosqlite:////x/catalog.sqlite"},
            r"not reached by sqlite\+aiosqlite: give sqlite:///path",
        ),
        ({"digest": []}, r"unknown digest \[\]; choose one of"),
        ({"storage_options": 5}, "storage_options=5: give a dict"),
    ],
)
def test_what_a_store_is_not_opened_with(tmp_path, given, message):
    with pytest.raises(InvalidArgument, match=message):
        ckptstore.open(tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


def test_what_nothing_is_repaired_from(store, place):
    with pytest.raises(InvalidArgument, match="give an open store"):
        store.repair(str(place))


def test_commits_can_be_told_apart_in_sets(store):
    assert len({*store.log(), *store.log()}) == len(store.log())


def test_a_parent_above_its_child(store):
    with pytest.raises(InvalidArgument, match="a parent is a lower step"):
        store.commit(state_of("main", 150), step=150, parent=200)


def test_an_index_that_cannot_be(store):
    for index in ((0, 0), slice(0, 10, -1), 1 << 40, "a"):
        with pytest.raises((InvalidArgument, IndexError)):
            store.read(100, "model/frozen", index=index)
    for choice in ([0], torch.tensor([True])):
        with pytest.raises(InvalidArgument, match="what a mask or a list selects, take from what was read"):
            store.read(100, "model/frozen", index=choice)
    for mask, kind in ((np.ones((200, 300), bool), "bool"), (torch.ones(200, 300, dtype=torch.bool), "torch.bool")):
        for wrong in (mask, (mask, 0, 0, 0)):
            with pytest.raises(InvalidArgument, match=rf"of shape \[200, 300\] and dtype {kind}") as caught:
                store.read(100, "model/frozen", index=wrong)
            assert len(str(caught.value)) < 200
    with pytest.raises(InvalidArgument) as caught:
        store.read(100, "model/frozen", index=list(range(10000)))
    assert len(str(caught.value)) < 200


# states


class Odd:
    pass


@pytest.mark.parametrize("commit", ["commit", "commit_async"])
def test_a_leaf_that_cannot_be_stored(store, commit):
    for leaf in (Odd(), torch.empty(2, device="meta")):
        state = state_of("main", 300) | {"deep": [{"er": leaf}]}
        with pytest.raises(UnsupportedLeaf, match="deep/0/er") as caught:
            getattr(store, commit)(state, step=300)
        assert caught.value.path == "deep/0/er"


def test_pickles_are_asked_for_twice(place):
    with ckptstore.open(place) as store:
        store.commit({"odd": {1, 2, 3}.__class__, "x": 1}, step=1, allow_pickle=True)
        with pytest.raises(PickleRefused, match="odd"):
            store.checkout(1)
        assert store.checkout(1, paths="x") == {"x": 1}
        assert store.checkout(1, allow_pickle=True)["odd"] is set


def test_all_that_does_not_fit_is_reported_and_nothing_written(store):
    into: dict[str, Any] = {
        "model": {"frozen": torch.zeros(5), "slow": torch.zeros(2048, dtype=torch.float64), "more": torch.zeros(1)},
        "tied": torch.zeros(2048),
        "small": torch.zeros(1),
        "text": "old",
        "step": -1,
    }
    del into["text"]
    before = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in into.items()}
    with pytest.raises(StateMismatch) as caught:
        store.checkout(100, into=into)
    message = str(caught.value)
    assert caught.value.missing == ("model/more",)
    assert set(caught.value.unexpected) >= {"model/own"}
    assert {line.split()[0].rstrip(":") for line in caught.value.different} >= {"model/frozen", "model/slow"}
    for path in ("model/more", "model/own", "model/frozen", "model/slow"):
        assert path in message
    assert "nothing was changed" in message
    for name in ("tied", "small", "step"):
        assert_same(into[name], before[name])
    assert not into["model"]["frozen"].any()
    assert not into["model"]["slow"].any()


# places


def test_a_folder_that_is_not_a_store(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for create in (True, False):
        with pytest.raises(NotAStore, match=r"holds no ckptstore\.json"):
            ckptstore.open(tmp_path, create=create)
    assert os.listdir(tmp_path) == ["notes.txt"]
    (tmp_path / "ckptstore.json").write_text("{}")
    with pytest.raises(NotAStore, match=r"ckptstore\.json is not readable as a store's settings"):
        ckptstore.open(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["ckptstore.json", "notes.txt"]


@pytest.mark.parametrize("create", [True, False])
def test_a_store_that_lost_its_settings(tmp_path, create):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"w": torch.ones(100_000)}, step=1)
    settings = tmp_path / "store" / "ckptstore.json"
    kept = settings.read_bytes()
    settings.unlink()
    with pytest.raises(NotAStore, match=r"commits of a store lie there, so bring back its ckptstore\.json"):
        ckptstore.open(tmp_path / "store", create=create)
    settings.write_bytes(kept[:100])
    with pytest.raises(NotAStore, match="restore the file from a copy"):
        ckptstore.open(tmp_path / "store", create=create)
    settings.write_bytes(kept)
    with ckptstore.open(tmp_path / "store") as store:
        assert store.verify().ok


def test_a_place_that_is_missing(tmp_path):
    for create, read_only in ((False, False), (True, True)):
        with pytest.raises(NotAStore, match="check the place, or make a store"):
            ckptstore.open(tmp_path / "missing", create=create, read_only=read_only)
    assert not (tmp_path / "missing").exists()


def test_a_place_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for beneath in ("", "deep/er"):
        with pytest.raises(StorageError, match="file is a file, not a folder: a store needs a folder"):
            ckptstore.open(tmp_path / "file" / beneath)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("beneath", ["", "deep/er"])
def test_a_place_that_is_a_link_to_nowhere(tmp_path, create, beneath):
    link = tmp_path / "link"
    link.symlink_to("gone")
    with pytest.raises(StorageError, match=r"link is a link to gone, which is not there: make that folder, or"):
        ckptstore.open(link / beneath, create=create)
    (tmp_path / "gone").mkdir()
    ckptstore.open(link / beneath).close()


def test_a_relative_place_in_a_folder_that_was_deleted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for place in ("rel", "s3:/rel"):
        with pytest.raises(InvalidArgument, match=f"'{place}' is relative, and the working directory was deleted"):
            ckptstore.open(place)
    ckptstore.open(tmp_path / "store").close()


@pytest.mark.parametrize("made", [None, "xxh3_128", "sha256"])
def test_a_store_keeps_its_digest(tmp_path, made):
    with ckptstore.open(tmp_path / "store", digest=made) as store:
        store.commit({"x": 1}, step=0)
    own = made or "xxh3_128"
    for digest in (None, own):
        with ckptstore.open(tmp_path / "store", digest=digest) as store:
            assert store.read(0, "x") == 1
    for digest in {"xxh3_128", "sha256", "blake3", "md5"} - {own}:
        with pytest.raises(InvalidArgument, match=f"{digest}.*made with '{own}'"):
            ckptstore.open(tmp_path / "store", digest=digest)


@pytest.mark.parametrize("options", [{"digest": "md5"}, {"chunk_bytes": 1}, {"chunk_bytes": 1 << 40}])
def test_settings_that_cannot_be(place, options):
    with pytest.raises(InvalidArgument):
        ckptstore.open(place, **options)
    assert not place.exists()


def test_foreign_files_in_a_store_are_left_alone(store, place):
    notes = [place / "notes.txt", place / "packs" / "notes.txt"]
    for path in notes:
        path.write_text("mine")
    store.gc(grace=0)
    assert store.verify().ok
    assert [path.read_text() for path in notes] == ["mine", "mine"]
    for path in notes:
        path.unlink()


def rewrite_settings(place, **changes):
    settings = msgspec.json.decode((place / version.KEY).read_bytes(), type=version.StoreConfig)
    (place / version.KEY).write_bytes(version.encode(msgspec.structs.replace(settings, **changes)))


def test_a_newer_format(store, place):
    kept = (place / version.KEY).read_bytes()
    newer = json.loads(kept) | {"format": version.FORMAT + 1, "unheard": "of"}
    (place / version.KEY).write_text(json.dumps(newer))
    with pytest.raises(StoreTooNew, match=f"{place} has format 2, this ckptstore reads up to 1: upgrade"):
        ckptstore.open(place)
    (place / version.KEY).write_bytes(kept)


def test_features_that_are_not_known(store, place):
    kept = (place / version.KEY).read_bytes()
    rewrite_settings(place, requires_read=("sorcery",))
    with pytest.raises(StoreTooNew, match=r"to read .* needs sorcery, unknown here: upgrade"):
        ckptstore.open(place)
    rewrite_settings(place, requires_read=(), requires_write=("sorcery",))
    with ckptstore.open(place) as opened:
        assert_exact(opened, "main", 100)
        for commit in (opened.commit, lambda state, step: opened.commit_async(state, step=step).result()):
            with pytest.raises(StoreTooNew, match=r"to write to .* needs sorcery"):
                commit(state_of("main", 300), step=300)
    rewrite_settings(place, requires_write=(), requires_gc=("sorcery",))
    with ckptstore.open(place) as opened:
        for act in (opened.gc, opened.plan_gc):
            with pytest.raises(StoreTooNew, match=r"to collect .* needs sorcery"):
                act(keep=ckptstore.KeepLast(0), grace=0)
    (place / version.KEY).write_bytes(kept)


@pytest.mark.parametrize(
    ("revision", "kind", "message"),
    [("0000", SchemaTooOld, "run `ckptstore migrate"), ("9999", SchemaTooNew, "update ckptstore")],
)
def test_another_schema(store, place, revision, kind, message):
    def stamp(number):
        with closing(sqlite3.connect(place / "catalog.sqlite")) as database, database:
            database.execute("UPDATE alembic_version SET version_num = ?", (number,))

    with closing(sqlite3.connect(place / "catalog.sqlite")) as database:
        ((kept,),) = database.execute("SELECT version_num FROM alembic_version")
    stamp(revision)
    for read_only in (False, True):
        with pytest.raises(kind, match=message):
            ckptstore.open(place, read_only=read_only)
    stamp(kept)


def test_a_catalog_on_a_network_file_system(place, monkeypatch):
    monkeypatch.setattr(catalogs, "network_file_system", lambda _: "nfs4")
    with pytest.raises(CatalogLocation, match="lies on nfs4, where SQLite's locks are not safe: give catalog="):
        ckptstore.open(place)
    assert not (place / "catalog.sqlite").exists()


# what may not be written


def test_a_store_opened_for_reading(store, place):
    with ckptstore.open(place, read_only=True) as reading:
        assert_exact(reading, "main", 100)
        assert reading.verify().ok
        for act in (
            lambda: reading.commit(state_of("main", 300), step=300),
            lambda: reading.commit_async(state_of("main", 300), step=300),
            lambda: ckptstore.CheckpointManager(reading, 1).save(300, state_of("main", 300)),
            lambda: reading.tag("new", 100),
            lambda: reading.untag("best"),
            lambda: reading.delete(200),
            lambda: reading.restore(200),
            lambda: reading.gc(keep=ckptstore.KeepLast(0)),
            lambda: reading.plan_gc(keep=ckptstore.KeepLast(0), grace=0).execute(),
        ):
            with pytest.raises(StorageReadOnly, match="opened for reading only"):
                act()


AS_NOBODY = """
import os, sys, ckptstore
import ckptstore.operations.committing.background, ckptstore.operations.committing.commit
import ckptstore.operations.loading.checkout
from ckptstore.testing.audit import state_of, assert_exact
if os.geteuid() == 0:
    os.setuid(int(sys.argv[2]))
try:
    ckptstore.open(sys.argv[1] + "/below")
except ckptstore.StorageReadOnly as error:
    print("open", error)
store = ckptstore.open(sys.argv[1] + "/store")
for step in (100, 200):
    assert_exact(store, "main", step)
assert store.verify().ok
for name, act in {
    "commit": lambda: store.commit(state_of("main", 300), step=300),
    "background": lambda: store.commit_async(state_of("main", 300), step=300).result(),
    "tag": lambda: store.tag("new", 100),
    "delete": lambda: store.delete(200),
    "gc": lambda: store.gc(keep=ckptstore.KeepLast(0), grace=0),
}.items():
    try:
        act()
    except ckptstore.StorageReadOnly as error:
        print(name, error)
assert store.steps() == [100, 200]
"""


@pytest.mark.parametrize("with_log", [False, True])
def test_a_read_only_folder(with_log):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        store = ckptstore.open(root / "store", chunk_bytes=CHUNK_BYTES)
        for step in (100, 200):
            store.commit(state_of("main", step), step=step)
        if not with_log:
            store.close()
        made = [root, *root.rglob("*")]
        before = files(root / "store")
        for path in made:
            path.chmod(0o555 if path.is_dir() else 0o444)
        lines = as_nobody(root)
        for path in made:
            path.chmod(0o755 if path.is_dir() else 0o644)
        store.close()
        assert [line.split()[0] for line in lines] == ["open", "commit", "background", "tag", "delete", "gc"]
        assert all(str(root) in line for line in lines)
        assert files(root / "store") == before
        assert assert_whole(root / "store") == STEPS


def as_nobody(root):
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", AS_NOBODY, str(root), str(NOBODY)]
    environment = os.environ | {"PYTHONPATH": path, "HOME": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("run", [".", "..", ".hidden", "é" * 200, "a/../b", "con.txt"])
def test_any_printable_name_is_a_run(tmp_path, run):
    with ckptstore.open(tmp_path / "store", run=run) as store:
        store.commit({"x": 1}, step=0)
        assert store.checkout(0) == {"x": 1}
        assert store.verify().ok


def test_a_store_one_folder_below_may_be_meant(tmp_path):
    for name in ("ckpts", "more"):
        ckptstore.open(tmp_path / name).close()
    for create, read_only in ((True, False), (False, False), (True, True)):
        with pytest.raises(NotAStore, match=f"did you mean {tmp_path}/ckpts or {tmp_path}/more?"):
            ckptstore.open(tmp_path, create=create, read_only=read_only)


def test_what_kept_a_store_from_being_made_is_reported(tmp_path):
    for create, read_only, option in ((False, False, "create=False"), (True, True, "read_only=True")):
        with pytest.raises(NotAStore, match=f"make a store with init, in Python by opening it without {option}"):
            ckptstore.open(tmp_path / "nowhere", create=create, read_only=read_only)


def test_a_tag_of_another_run_may_be_meant(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        for run in ("main", "other", "mine"):
            store.commit({"a": run}, step=1, run=run)
        ckptstore.open(tmp_path / "store", run="other").tag("best", 1)
        for act in (store.find, store.untag):
            with pytest.raises(TagNotFound, match=r"no tag 'best'; there is none yet; other@best is one$"):
                act("best")
        with pytest.raises(TagNotFound, match=r"there is none yet$"):
            store.find("worst")


def test_a_folder_whose_path_is_no_utf_8(tmp_path):
    place = tmp_path / os.fsdecode(b"x\xff")
    with pytest.raises(
        InvalidArgument, match=r"x.udcff/catalog.sqlite' is no text that UTF-8 can hold: name it otherwise"
    ):
        ckptstore.open(place)
    assert not place.exists()
