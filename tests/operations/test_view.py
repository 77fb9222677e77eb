from dataclasses import replace

import pytest
import torch

import ckptstore
from ckptstore import StepNotFound
from ckptstore.opening import open_parts
from ckptstore.operations import view
from ckptstore.store import Store


class Counting:
    """A catalog that counts how many manifests it gave."""

    def __init__(self, catalog):
        self._catalog, self.given = catalog, 0

    def manifest(self, commit):
        self.given += 1
        return self._catalog.manifest(commit)

    def __getattr__(self, name):
        return getattr(self._catalog, name)


@pytest.fixture
def counting(tmp_path):
    with ckptstore.open(tmp_path) as store:
        for step in range(3):
            store.commit({"state": {"a": torch.full((100,), step), "steps": [step]}}, step=step)
    parts = open_parts(
        tmp_path,
        catalog=None,
        create=False,
        read_only=False,
        digest="xxh3_128",
        chunk_bytes=1 << 22,
        storage_options=None,
    )
    return Counting(parts.catalog), parts


@pytest.fixture
def reading(counting):
    catalog, parts = counting
    with Store(replace(parts, catalog=catalog), "main") as store:
        yield store


def test_a_manifest_is_read_once_for_many_reads(counting, reading):
    for step in (0, 1, 0, 1, "latest"):
        expected = 2 if step == "latest" else step
        assert reading.read(step, "state/a").tolist() == [expected] * 100
        assert reading.checkout(step)["state"]["steps"] == [expected]
    assert counting[0].given == 3


def test_get_does_not_look_for_what_is_near(reading, monkeypatch):
    """That takes a tenth of a second among 10,000 paths."""
    found = reading.manifest(0)
    monkeypatch.setattr(view, "nearest", lambda *_: pytest.fail("looked"))
    assert found.get("state/a") == found["state/a"]
    assert found.get("state/b") is None
    assert found.get("state/b", 3) == 3


def test_manifests_of_many_leaves_are_not_kept(counting, reading, monkeypatch):
    monkeypatch.setattr(view, "_MOST_LEAVES", 4)
    for step in (0, 1, 0, 1, 2, 1, 0):
        assert reading.read(step, "state/steps") == [step]
    assert counting[0].given == 4


def test_a_step_that_was_deleted_is_not_read(reading):
    reading.read(1, "state/a")
    reading.delete(1)
    with pytest.raises(StepNotFound):
        reading.read(1, "state/a")
    reading.commit({"state": {"a": torch.full((100,), 7)}}, step=1)
    assert reading.read(1, "state/a").tolist() == [7] * 100


def test_what_users_do_to_a_manifest_changes_nothing_that_is_read(reading):
    assert reading.read(1, "state/steps") == [1]
    reading.manifest(1)["state/steps"].value.append(2)
    reading.checkout(1)["state"]["steps"].append(2)
    reading.read(1, "state/steps").append(2)
    assert reading.read(1, "state/steps") == [1]
