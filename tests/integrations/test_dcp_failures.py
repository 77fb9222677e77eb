"""Saves of several processes that fail: all ranks hear of it, earlier steps stay, and gc takes the rest."""

from __future__ import annotations

import pytest

import ckptstore
from ckptstore.testing.audit import assert_nothing_leaked
from tests.integrations.rank_child import tensors


def failures(answers):
    """The errors of every rank, as each rank's save reports them."""
    assert all(answer is not None and answer.get("error") == "CheckpointException" for answer in answers), answers
    return [answer["failures"] for answer in answers]


def assert_only(place, step):
    with ckptstore.open(place) as store:
        assert store.steps() == [step]
        found = store.checkout(step)["model"]
        assert [name for name, tensor in tensors(step).items() if not tensor.equal(found[name])] == []
    assert_nothing_leaked(place)


@pytest.mark.parametrize("who", [0, 3])
def test_a_failure_of_one_rank_is_one_of_all(crew, place, who):
    crew.do("save", 4, place=place, step=1, seed=1)
    failed = failures(crew.ask("save_and_fail", 4, place=place, step=2, how="fail", who=who))
    assert failed == [failed[0]] * 4
    assert failed[0][str(who)] == "OSError('the tensor is gone')"
    others = [failed[0][str(rank)] for rank in range(4) if rank != who]
    assert all("RankFailed" in other and f"rank {who} failed: OSError" in other for other in others)
    assert_only(place, 1)
    crew.do("save", 4, place=place, step=2, seed=2)
    assert crew.do("load", 4, place=place, step=2, seed=2) == [[]] * 4


def test_ranks_that_disagree(crew, place, tmp_path):
    crew.do("save", 4, place=place, step=1, seed=1)
    with ckptstore.open(tmp_path / "other") as other:
        apart = [([place], [2, 3], "step 2"), ([place, other.url], [2], "to store")]
    for places, steps, what in apart:
        (failed, *_) = failures(crew.ask("save_apart", 4, places=places, steps=steps))
        assert "InvalidArgument" in failed["0"]
        assert what in failed["0"]
    assert_only(place, 1)


def test_shards_that_do_not_fit(crew, place):
    crew.do("save", 2, place=place, step=1, seed=1)
    (failed, _) = failures(crew.ask("save_with_a_hole", 2, place=place, step=2))
    assert "StateError" in failed["0"]
    assert "model.x" in failed["0"]
    assert_only(place, 1)


def test_a_step_that_is_taken(crew, place):
    crew.do("save", 4, place=place, step=1, seed=1)
    (failed, *_) = failures(crew.ask("save", 4, place=place, step=1, seed=2))
    assert "StepExists" in failed["0"]
    crew.do("save", 2, place=place, step=1, seed=1, layout="columns")
    assert_only(place, 1)


def test_the_group_has_to_be_told(crew, place):
    (failed, _) = failures(crew.ask("save_in_the_wrong_group", 2, place=place, step=1))
    assert "process_group" in failed["0"]


def test_every_rank_for_itself_is_refused(crew, place):
    answers = crew.ask("save_without_collectives", 2, place=place, step=1)
    assert {answer["error"] for answer in answers} == {"InvalidArgument"}


def test_a_part_of_a_tensor_within_one_value(crew, place):
    crew.do("save", 2, place=place, step=1, seed=1)
    (failed, _) = failures(crew.ask("save_a_part_in_a_tuple", 2, place=place, step=2))
    assert "UnsupportedLeaf" in failed["0"]
    assert "DTensor" in failed["0"] and "'pair/0'" in failed["0"] and "dict or list" in failed["0"]
    assert_only(place, 1)


def test_another_coordinator_is_refused_before_anything_is_written(crew, place):
    crew.do("save", 2, place=place, step=1, seed=1)
    for failed in failures(crew.ask("save_with_another_coordinator", 2, place=place, step=2)):
        assert "InvalidArgument" in failed["1"]
        assert "coordinator_rank=1: leave it out" in failed["1"]
    with ckptstore.open(place) as store:
        assert store.stats().packs.keys() == {"live"}
    assert_only(place, 1)


@pytest.mark.crash
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["before", "during", "after"])
def test_a_rank_that_dies(doomed, place, how, who):
    crew = doomed(2)
    crew.do("save", 2, place=place, step=1, seed=1)
    answers = crew.ask("save_and_fail", 2, place=place, step=2, how=how, who=who)
    assert answers[who] is None
    assert answers[1 - who] is not None
    assert "error" in answers[1 - who]
    assert_only(place, 1)
    with ckptstore.open(place) as store:
        store.commit({"model": tensors(2)}, step=2)
        assert store.verify().problems == ()
