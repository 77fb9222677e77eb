"""Every operation on storage and every call of the catalog fails once while DCP saves or loads."""

from __future__ import annotations

import itertools
import shutil
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ckptstore.errors import CkptStoreError, SessionFenced
from ckptstore.integrations.dcp import StoreReader, StoreSavePlanner, StoreWriter
from ckptstore.store import Store
from ckptstore.testing.audit import assert_nothing_leaked, expire_sessions, site_of
from tests.failing import fail_catalog, fail_storage


def state(step) -> Any:
    return {"model": {"kept": torch.arange(5000.0), "own": torch.arange(5000.0) + step}, "text": f"{step} " * 2000}


def save_step(store, planner=None):
    save(state(2), storage_writer=StoreWriter(store, step=2), planner=planner)


def load_step(store):
    found: Any = {"model": {name: torch.zeros(5000) for name in ("kept", "own")}, "text": ""}
    load(found, storage_reader=StoreReader(store, step=1))
    assert found["model"]["own"].equal(state(1)["model"]["own"])


@pytest.fixture
def place(tmp_path):
    with site_of(tmp_path / "first").open(chunk_bytes=4096) as store:
        store.commit(state(1), step=1)
    return tmp_path / "first"


def assert_holds(place, steps):
    with site_of(place).open() as store:
        assert store.steps() == steps
        for step in steps:
            found = store.checkout(step)
            assert all(tensor.equal(found["model"][name]) for name, tensor in state(step)["model"].items())
            assert found["text"] == state(step)["text"]
        assert store.verify().problems == ()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fail", [fail_storage, fail_catalog])
@pytest.mark.parametrize("act", [save_step, load_step])
def test_fail_the_nth(place, tmp_path, act, fail, after):
    for n in itertools.count(1):
        copy = shutil.copytree(place, tmp_path / str(n))
        failed = try_once(copy, act, partial(fail, n=n, after=after))
        with site_of(copy).open() as store:
            act(store)
        steps = [1, 2] if act is save_step else [1]
        assert_holds(copy, steps)
        assert_nothing_leaked(copy)
        assert_holds(copy, steps)
        shutil.rmtree(copy)
        if not failed:
            break
    assert n > 1


def try_once(place, act, fail):
    """Whether the failure came. An error must be of the tree."""
    parts, counter = fail(site_of(place).parts())
    with Store(parts, "main") as store:
        try:
            act(store)
        except CheckpointException as error:
            assert counter.failed
            (failure,) = (failure for failure, _ in error.failures.values())
            assert isinstance(failure, CkptStoreError) or "injected" in str(failure)
    return counter.failed


def test_a_writer_that_was_taken_for_dead(place):
    class Slow(StoreSavePlanner):
        def resolve_data(self, write_item):
            expire_sessions(place)
            with site_of(place).open() as other:
                other.gc(grace=0)
            return super().resolve_data(write_item)

    with site_of(place).open() as store:
        with pytest.raises(CheckpointException) as caught:
            save_step(store, Slow())
        assert isinstance(caught.value.failures[0][0], SessionFenced)
        assert_holds(place, [1])
        assert_nothing_leaked(place)
        save_step(store)
    assert_holds(place, [1, 2])
