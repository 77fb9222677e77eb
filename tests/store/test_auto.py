"""What compression="auto" spends on a slow disk: as much as who waits for it gains, and less beside training."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

import ckptstore
from ckptstore.chunkstore.pace import Pace
from ckptstore.integrations.dcp import StoreWriter
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store

RAW = 160 << 20


class Slow(Intercepted):
    """A disk that takes 0.6 s for each pack."""

    def intercept(self, verb, key, operation):
        if verb == "put" and key.startswith("packs/"):
            time.sleep(0.6)
        return operation()


@pytest.fixture
def slow(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        yield Store(replace(store._parts, storage=Slow(store._parts.storage)), "main")


def weights(step):
    return {"w": torch.randn(RAW // 4, generator=torch.Generator().manual_seed(step)) * 0.02}


def small(step):
    return {"w": torch.full((5000,), float(step))}


def test_a_slow_disk_gets_fewer_bytes_once_it_is_known_to_be_slow(slow):
    first, second = (slow.commit(weights(step), step=step) for step in range(2))
    assert first.new_bytes > 0.98 * RAW
    assert second.new_bytes < 0.95 * RAW  # the first pack is raw: nothing is written meanwhile
    assert torch.equal(slow.checkout(1)["w"], weights(1)["w"])


def test_commits_in_the_background_leave_the_cores_to_training(tmp_path, monkeypatch):
    asked = []

    def choose(pace, *, background=False, writes=True):
        asked.append(background)
        return "light"

    monkeypatch.setattr(Pace, "choose", choose)
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(small(0), step=0)
        assert set(asked) == {False}
        asked.clear()
        store.commit_async(small(1), step=1).result()
        assert set(asked) == {True}
        asked.clear()
        save(small(2), storage_writer=StoreWriter(store, step=2), no_dist=True)  # as dcp.async_save does it
        assert set(asked) == {True}


def test_small_commits_to_a_slow_disk_are_not_encoded(slow):
    """Most of their time is that of a flush, which takes as long for fewer bytes."""
    for step in range(6):
        state = {"w": weights(step)["w"][: 1 << 20]}
        assert slow.commit(state, step=step).new_bytes > 0.98 * (4 << 20)
