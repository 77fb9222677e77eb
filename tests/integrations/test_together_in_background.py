"""Commits that several processes make together while they train."""

from __future__ import annotations

import pytest

from ckptstore.testing.audit import assert_nothing_leaked


@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_changes_after_the_return_is_not_stored(crew, store, count):
    assert crew.do("train_in_background", count, place=store.url, steps=7) == [[]] * count
    assert store.steps() == list(range(7))
    assert store.read(6, "model/0.weight").shape == (367, 40)
    assert store.read(6, "average").eq(6).all()
    assert store.verify().problems == ()


@pytest.mark.parametrize("how", ["by its optimizer", "its form"])
def test_what_is_left_where_it_is_may_change(crew, how):
    assert crew.do("change_what_is_lent", 2, how=how) == [True, True]


def test_only_its_optimizer_may_change_a_tensor(crew):
    answers = crew.ask("change_what_is_lent", 2, how="as a whole")
    assert [answer["error"] for answer in answers] == ["StateError"] * 2
    assert "'model/0.weight' was changed, and not by its optimizer's step" in answers[0]["traceback"]


def test_each_stands_on_the_one_before(crew, store):
    assert crew.do("commit_in_turns", 2, place=store.url) == [[True] * 3] * 2
    commits = [store.find(step) for step in range(4)]
    assert [commit.parent for commit in commits] == [None, *(commit.id for commit in commits[:3])]


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_cannot_stage(crew, store, who):
    errors = crew.do("stage_and_fail", 2, place=store.url, who=who)
    assert errors[who] == "OSError: the state is gone"
    assert errors[1 - who].startswith(f"RankFailed: rank {who} failed: OSError: the state is gone")
    assert store.steps() == [0, 2]


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_cannot_write(crew, store, who):
    errors = crew.do("write_and_fail", 2, place=store.url, who=who)
    assert errors[who] == ["StorageFull: no space"] * 2
    assert all(one.startswith(f"RankFailed: rank {who} failed: StorageFull: no space") for one in errors[1 - who])
    assert len(errors[1 - who]) == 2
    assert store.steps() == [0, 3]
    assert_nothing_leaked(store.url)


def test_ranks_agree_on_who_is_busy(crew, store):
    assert crew.do("meet_busy_ranks", 2, place=store.url) == [["busy"] * 3] * 2
    assert store.steps() == [0, 1]


@pytest.mark.crash
def test_another_world_and_a_rank_that_dies(doomed, store, tmp_path):
    crew = doomed(3)
    crew.do("commit_in_two_worlds", 3, place=store.url, folder=str(tmp_path))
    assert store.steps() == [0, 1]
    answers = crew.ask("die_in_background", 3, place=store.url, who=2)
    assert answers[2] is None
    for answer in answers[:2]:
        name, seconds, again = answer["value"]
        assert name == again == "RankFailed" and seconds < 20
    assert store.steps() == [0, 1]
    assert [int(store.read(1, f"{rank}/own")[0]) for rank in range(3)] == [1, 2, 3]
