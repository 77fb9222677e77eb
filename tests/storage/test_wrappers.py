from __future__ import annotations

import os
import time

import pytest

from ckptstore.errors import (
    CorruptData,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import Intercepted, ReadOnly, Retrying
from ckptstore.testing.faults import MUTATING, FailNth, Latency, Recording
from ckptstore.testing.storage import keys, read


@pytest.fixture
def local(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put("a", [b"0123"])
    return storage


def test_read_only(local):
    storage = ReadOnly(local, "for reading only")
    for act in (lambda: storage.put("b", [b"x"]), lambda: storage.delete("a")):
        with pytest.raises(StorageReadOnly, match=r"^(b is not stored|a is not deleted): for reading only$"):
            act()
    assert storage.get("a") == read(storage, "a", 0, 4) == b"0123"
    assert storage.head("a") == local.head("a")
    assert keys(storage) == {"a"}
    assert storage.url == local.url


ACTS = {
    "put": lambda storage: storage.put("b", [b"xy", b"z"]),
    "get": lambda storage: storage.get("a"),
    "get_ranges": lambda storage: read(storage, "a", 1, 2),
    "head": lambda storage: storage.head("a"),
    "list": keys,
    "delete": lambda storage: storage.delete("a"),
}


class Failing(Intercepted):
    """Fails `times` times, before or after the operation took effect."""

    def __init__(self, storage, error, times, *, after=False):
        super().__init__(storage)
        self.error, self.times, self.after, self.tries = error, times, after, 0

    def intercept(self, verb, key, operation):
        self.tries += 1
        if self.tries > self.times:
            return operation()
        if self.after:
            operation()
        raise self.error


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("verb", "act"), ACTS.items(), ids=ACTS)
def test_what_fails_for_a_moment_is_tried_again(local, verb, act, after):
    before, failing = local.head("a"), Failing(local, StorageUnavailable("busy"), 3, after=after)
    came = act(Retrying(failing))
    assert failing.tries >= 4
    assert came == {"get": b"0123", "get_ranges": b"12", "head": before, "list": {"a"}}.get(verb)
    assert keys(local) == {"put": {"a", "b"}, "delete": set()}.get(verb, {"a"})
    assert verb != "put" or local.get("b") == b"xyz"


@pytest.mark.parametrize("kind", [StorageError, StorageFull, StorageReadOnly, CorruptData, ObjectNotFound, OSError])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_what_is_permanent_is_not_tried_again(local, act, kind):
    error = kind("for good")
    failing = Failing(local, error, 1000)
    with pytest.raises(kind) as caught:
        act(Retrying(failing))
    assert caught.value is error
    assert failing.tries <= 2  # a failed put is looked after once


def test_patience_ends(local):
    failing = Failing(local, StorageUnavailable("busy"), 1000)
    with pytest.raises(StorageUnavailable):
        Retrying(failing, patience=0.5).get("a")
    assert 3 <= failing.tries < 100


def test_a_long_wait_is_logged_once(local, monkeypatch, caplog):
    with monkeypatch.context() as patched, pytest.raises(StorageUnavailable):
        patched.setattr("ckptstore.patience._QUIET", 0)
        Retrying(Failing(local, StorageUnavailable("busy"), 1000), patience=1).get("a")
    [record] = caplog.records
    assert (record.name, record.levelname) == ("ckptstore", "WARNING")
    assert record.message == "trying again for 1 s more: busy"
    caplog.clear()
    assert Retrying(Failing(local, StorageUnavailable("busy"), 1)).get("a") == b"0123"
    assert caplog.records == []


def test_a_key_taken_by_other_bytes_is_taken(local):
    for taken in ("other", "xy0", "xyzz"):
        local.put(taken, [taken.encode()])
        with pytest.raises(ObjectExists):
            Retrying(Failing(local, StorageUnavailable("busy"), 1)).put(taken, [b"xyz"])


def test_only_what_leaves_something_is_swept(local):
    (local.root / ".writing-1").write_bytes(b"x")
    os.utime(local.root / ".writing-1", (0, 0))
    assert Retrying(local).sweep_temporary("", 60) == 1
    assert Retrying(Intercepted(local)).sweep_temporary("", 60) == 0


def test_fail_nth_before(local):
    storage = FailNth(local, 2)
    storage.put("b", [b"x"])
    assert storage.seen == 1
    with pytest.raises(StorageError, match="put 'c' failed, operation 2"):
        storage.put("c", [b"x"])
    storage.put("d", [b"x"])
    assert keys(local) == {"a", "b", "d"}
    assert storage.failed


def test_fail_nth_after(local):
    storage = FailNth(local, 1, TimeoutError("lost"), after=True)
    with pytest.raises(TimeoutError, match="lost"):
        storage.put("b", [b"x"])
    assert keys(local) == {"a", "b"}


def test_fail_nth_of_some_verbs(local):
    storage = FailNth(local, 1, verbs=MUTATING)
    assert storage.get("a") == read(storage, "a", 0, 4) == b"0123"
    assert storage.head("a").size == 4
    assert keys(storage) == {"a"}
    with pytest.raises(StorageError):
        storage.delete("a")
    assert keys(local) == {"a"}


def test_fail_nth_counts_every_verb(local):
    def everything(storage):
        storage.put("b", [b"x"])
        read(storage, "a", 0, 1)
        storage.get("a")
        storage.head("a")
        keys(storage)
        storage.delete("b")

    for n in range(1, 7):
        with pytest.raises(StorageError, match=f"operation {n}$"):
            everything(FailNth(local, n))
        local.delete("b")
    everything(FailNth(local, 7))


def test_latency(local):
    begun = time.perf_counter()
    Latency(local, 0.05).get("a")
    assert time.perf_counter() - begun >= 0.05


def test_recording(local):
    storage = Recording(local)
    storage.put("b", [b"xyz", memoryview(b"12345678").cast("I")])
    storage.get("a")
    read(storage, "a", 1, 2)
    storage.head("a")
    keys(storage)
    storage.delete("b")
    with pytest.raises(StorageError):
        storage.get("b")
    assert storage.operations == {"put": 1, "get": 2, "get_ranges": 1, "head": 1, "list": 1, "delete": 1}
    assert (storage.written, storage.read) == (11, 6)
