"""A store on real servers: every storage with every database."""

from __future__ import annotations

import pytest
import torch

import ckptstore
from ckptstore.testing.audit import assert_exact, assert_nothing_leaked, files, state_of


@pytest.fixture
def site(sites):
    return sites()


@pytest.fixture
def store(site):
    with site.open(chunk_bytes=4096) as store:
        yield store


def test_a_store_lives_there(store, site):
    for step in range(6):
        store.commit(state_of("main", step), step=step, metadata={"loss": step})
    store.commit_async(state_of("main", 6), step=6).result()
    store.tag("best", 0)
    assert store.steps() == list(range(7))
    with site.open() as other:
        for step in range(7):
            assert_exact(other, "main", step)
        rows = other.read(3, "model/own", index=slice(1000, 1010))
        assert torch.equal(rows, state_of("main", 3)["model"]["own"][1000:1010])
        assert {change.path for change in other.diff(2, 3).changes} >= {"model/own", "small", "step"}
        assert other.verify().ok
    assert store.gc(ckptstore.KeepLast(2), grace=0).deleted == (1, 2, 3, 4)
    store.gc(grace=0)
    assert store.steps() == [0, 5, 6]
    assert store.verify().ok
    assert_nothing_leaked(site)


def test_what_did_not_change_is_not_sent_again(store, site):
    store.commit(state_of("main", 0), step=0)
    before = files(site)
    store.commit(state_of("main", 0), step=1)
    assert len(files(site) - before) == 1  # the manifest document
