"""Commits of ranks that are told what is the same on all of them."""

from __future__ import annotations

import pytest
import torch

import ckptstore
from ckptstore.testing.audit import assert_nothing_leaked

HOW = pytest.mark.parametrize("how", ["at once", "in the background"])


@HOW
@pytest.mark.parametrize("count", [2, 4])
def test_what_is_the_same_makes_the_same_commit(crew, store, how, count):
    assert crew.do("commit_with_and_without", count, place=store.url, how=how, seeds=list(range(6))) == [[]] * count
    assert store.verify().problems == ()


@HOW
@pytest.mark.parametrize("count", [2, 4])
def test_what_differs_in_spite_of_it_is_stored_of_one_rank(crew, store, how, count):
    crew.do("commit_what_differs", count, place=store.url, how=how)
    state = store.checkout(1)
    assert list(state) == ["counter", "text", "weights", "tied"]
    assert state["counter"] in range(count)
    assert (len(state["text"]) - 1) / 5000 in range(count)
    tied, weights = state["tied"], list(state["weights"].values())
    for tensor in [*weights, *tied.values()]:
        assert tensor[0].item() in range(count) and tensor.eq(tensor[0]).all()
    assert {tensor[0].item() for tensor in weights} == set(range(count))  # all have something to do
    assert tied["in"].data_ptr() == tied["out"].data_ptr()
    assert store.verify().problems == ()


FORM = "torch float32[3000]"
MISFITS = {
    "shape": f"'w': rank 0 has replicated {FORM}, rank 1 replicated torch float32[3001]: give all ranks",
    "dtype": f"'w': rank 0 has replicated {FORM}, rank 1 replicated torch float64[3000]",
    "parameter": f"'w': rank 0 has replicated {FORM}, rank 1 replicated {FORM}, requires_grad=True, parameter=True",
    "kind": f"'w': rank 0 has replicated plain value, rank 1 replicated {FORM}",
    "dict": "'w/x': replicated torch float32[3000] in 'w', which is each rank's own, as ranks 0 and 1 differ in 'w'",
    "shard": f"'w': rank 0 has a part of {FORM}, rank 1 replicated {FORM}: give all ranks parts of one tensor",
    "globs": f"'w': rank 0 has replicated {FORM}, rank 1 {FORM}: give all ranks the same replicated=",
    "list": f"'list/0/w': replicated {FORM} in 'list', which is each rank's own, as ranks 0 and 1 differ in 'list/1'",
    "length": f"'list/0': replicated {FORM} in 'list', which is each rank's own, as ranks 0 and 1 differ in 'list'",
}


@HOW
@pytest.mark.parametrize("kind", MISFITS)
def test_what_cannot_be_the_same_is_reported_to_all(crew, place, how, kind):
    answers = crew.ask("commit_no_replicas", 2, place=place, how=how, kind=kind)
    assert [answer["error"] for answer in answers] == ["StateError", "RankFailed"]
    assert all(MISFITS[kind] in answer["traceback"] for answer in answers)
    assert_nothing_is_there(place)


@HOW
def test_what_are_no_globs_is_reported_to_all(crew, place, how):
    answers = crew.ask("commit_no_replicas", 2, place=place, how=how, kind="type")
    assert [answer["error"] for answer in answers] == ["RankFailed", "InvalidArgument"]
    assert all("replicated=5: give a glob of logical paths" in answer["traceback"] for answer in answers)
    assert_nothing_is_there(place)


def test_alone_it_changes_nothing(store):
    state = {"w": torch.ones(3000), "step": 3}
    records = [
        store.commit(state, step=1),
        store.commit(state, step=2, replicated="**"),
        store.commit_async(state, step=3, replicated=["w", "no/*"]).result(),
    ]
    assert len({record.content for record in records}) == 1


def assert_nothing_is_there(place):
    with ckptstore.open(place) as store:
        assert store.steps() == []
    assert_nothing_leaked(place)
