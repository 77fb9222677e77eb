from __future__ import annotations

import time

import pytest

from ckptstore.errors import StorageError, StorageReadOnly
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import ReadOnly
from ckptstore.testing.faults import MUTATING, FailNth, Latency, Recording
from ckptstore.testing.storage import keys, read


@pytest.fixture
def local(tmp_path):
    storage = LocalStorage(tmp_path)
    storage.put("a", [b"0123"])
    return storage


def test_read_only(local):
    storage = ReadOnly(local)
    for act in (lambda: storage.put("b", [b"x"]), lambda: storage.delete("a")):
        with pytest.raises(StorageReadOnly, match=local.url):
            act()
    assert storage.get("a") == read(storage, "a", 0, 4) == b"0123"
    assert storage.head("a") == local.head("a")
    assert keys(storage) == {"a"}
    assert storage.url == local.url


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
