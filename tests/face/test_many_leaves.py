"""Python looks for garbage among all that a process holds whenever enough is added: what adds less, waits less."""

from __future__ import annotations

import gc

import pytest
import torch

import ckptstore

COUNT = 1000


def state():
    return {"model": {f"layer.{number}": torch.full((256,), float(number)) for number in range(COUNT)}}


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(state(), step=0)
        store.checkout(0, into=state())
        yield store


def added_by(operation):
    """How many objects that the collector looks at are there beside those of before, when half of it is done."""
    added: list[int] = []

    def look(_, done, total):
        if not added and done >= total / 2:
            gc.collect()
            added.append(len(gc.get_objects()) - before)

    gc.collect()
    before = len(gc.get_objects())
    operation(look)
    return added[0]


def test_a_checkout_of_many_tensors_adds_few_objects_a_tensor(store):
    into = state()
    assert added_by(lambda look: store.checkout(0, into=into, progress=look)) < 8 * COUNT
    assert all(torch.equal(into["model"][path], tensor) for path, tensor in state()["model"].items())


def test_a_commit_of_many_tensors_adds_few_objects_a_tensor(store):
    held = state()
    store.commit(held, step=1)
    assert added_by(lambda look: store.commit(held, step=2, progress=look)) < 9 * COUNT
