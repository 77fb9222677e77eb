"""What compression="auto" spends on a slow disk: as much as who waits for it gains, and less beside training."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

import ckptstore
from ckptstore.chunkstore.pace import Pace
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store

RAW = 24 << 20


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


def test_a_slow_disk_gets_fewer_bytes_once_it_is_known_to_be_slow(slow):
    first, second = (slow.commit(weights(step), step=step) for step in range(2))
    assert first.new_bytes > 0.98 * RAW
    assert second.new_bytes < 0.9 * RAW
    assert torch.equal(slow.checkout(1)["w"], weights(1)["w"])


def test_commits_in_the_background_leave_the_cores_to_training(tmp_path, monkeypatch):
    asked = []

    def choose(pace, *, background=False):
        asked.append(background)
        return "light"

    monkeypatch.setattr(Pace, "choose", choose)
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(weights(0), step=0)
        assert set(asked) == {False}
        asked.clear()
        store.commit_async(weights(1), step=1).result()
        assert set(asked) == {True}
