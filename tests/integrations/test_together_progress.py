"""Each rank of a commit that several make gets the progress of its own bytes."""

from __future__ import annotations

import pytest

from ckptstore.testing.audit import assert_nothing_leaked
from tests.integrations.test_dcp_ranks import JOBS

SEVERAL = [(layout, count) for layout, count in JOBS if count > 1]


@pytest.mark.parametrize(("layout", "count"), SEVERAL)
def test_each_rank_counts_its_own_bytes(crew, store, layout, count):
    for step in (1, 2):  # of the second commit there is nothing to store
        for calls, nbytes in crew.do("commit_watched", count, place=store.url, step=step, layout=layout):
            assert {(stage, total) for stage, _, total in calls} == {("commit", nbytes)}
            done = [count for _, count, _ in calls]
            assert done == sorted(done) and done[-1] == nbytes
            assert 0 <= done[0] < nbytes and len(done) > 1
    assert store.verify().problems == ()


def test_what_another_rank_stores_is_done_with_first(crew, store):
    found = crew.do("commit_watched", 4, place=store.url, step=1, layout="plain")
    assert all(calls[0][1] >= nbytes // 4 for calls, nbytes in found)


@pytest.mark.parametrize("count", [1, 2])
def test_a_handle_of_ranks_ends_with_all_of_its_bytes(crew, store, count):
    for calls, nbytes in crew.do("commit_watched", count, place=store.url, step=1, background=True):
        assert calls == [["commit", nbytes, nbytes]]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_callback_that_raises_stops_all_ranks(crew, store, failing):
    answers = crew.ask("commit_watched", 2, place=store.url, step=1, failing=failing)
    assert [answer["error"] for answer in answers] == ["RankFailed", "OSError"]
    assert "rank 1 failed: OSError: enough" in answers[0]["traceback"]
    assert store.steps() == []
    assert_nothing_leaked(store.url)
    crew.do("commit_watched", 2, place=store.url, step=1)
    assert store.steps() == [1]


@pytest.mark.parametrize("who", [0, 1])
def test_what_is_no_callback_stops_all_ranks(crew, store, who):
    answers = crew.ask("commit_watched_by_none", 2, place=store.url, step=1, who=who)
    assert [answer["error"] for answer in answers] == [
        "InvalidArgument" if rank == who else "RankFailed" for rank in range(2)
    ]
    assert "progress=5" in answers[who]["traceback"]
    assert store.steps() == []
