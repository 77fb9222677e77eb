"""Ranks that end, fall silent or give up their group while they commit: all hear of it, and nothing is half there."""

from __future__ import annotations

import signal

import pytest

import ckptstore
from ckptstore.testing.audit import assert_nothing_leaked
from tests.integrations.ending_child import SILENCE

pytestmark = pytest.mark.crash

CODES = {"end": 0, "wait": 0, "exit": 3, "raise": 1, "refuse": 0, "die": -signal.SIGKILL}


def assert_whole(place, steps):
    """These steps are there as their ranks had them, and nothing else is."""
    with ckptstore.open(place) as store:
        assert store.steps() == steps
        assert store.verify().problems == ()
        for step in steps:
            state = store.checkout(step)
            ranks = [state[key]["own"].unique().tolist() for key in state if key != "weights"]
            assert ranks == [[10.0 * step + rank] for rank in range(len(ranks))] and len(ranks) > 1
            assert state["weights"].shape == (1667, 3) and state["weights"][-1, -1] == 5001 * (step + 1)
    assert_nothing_leaked(place)


def test_an_interpreter_that_exits_finishes_the_commit_first(jobs):
    ends = [["end", "raise", "wait"], ["wait", "exit", "end"]]
    for how, job in zip(ends, jobs.run(*(("leave", 3, {"ends": how}) for how in ends)), strict=True):
        assert job.codes == tuple(CODES[end] for end in how)
        for end, said, error in zip(how, job.said, job.errors, strict=True):
            assert said == (["done"] if end == "wait" else [])
            assert error.count("Traceback") == (end == "raise")
            assert "ckptstore:" not in error and (end == "raise" or not error)
        assert_whole(job.place, [0, 1])


def test_what_fails_then_is_reported_at_exit(jobs):
    ends = [["end", "refuse", "wait"], ["die", "end", "raise"]]
    refused, dead = jobs.run(*(("leave", 3, {"ends": how}) for how in ends))
    for how, job in zip(ends, (refused, dead), strict=True):
        assert job.codes == tuple(CODES[end] for end in how)
        assert_whole(job.place, [0])
    assert "ckptstore: a background commit failed: RankFailed('rank 1 failed: StorageFull" in refused.errors[0]
    assert refused.errors[1] == "ckptstore: a background commit failed: StorageFull('no space')\n"
    assert refused.said[2] == ["RankFailed: rank 1 failed: StorageFull: no space; the same may be committed again"]
    assert not refused.errors[2]
    for error in dead.errors[1:]:
        (line,) = (line for line in error.splitlines() if line.startswith("ckptstore:"))
        assert line.startswith("ckptstore: a background commit failed: RankFailed('the process group or a rank")


def test_a_silent_rank_is_waited_for_as_long_as_the_group_says(jobs):
    silent = [
        ("commit", 2, 0),
        ("commit", 4, 3),
        ("commit_async", 4, 0),
        ("dcp", 2, 0),
        ("dcp", 2, 1),
    ]
    ended = jobs.run(*(("fall_silent", count, {"how": how, "who": who}) for how, count, who in silent))
    for (how, count, who), job in zip(silent, ended, strict=True):
        assert job.codes == tuple(-signal.SIGSTOP if rank == who else 0 for rank in range(count))
        for rank in {*range(count)} - {who}:
            ((outcome, seconds),) = job.said[rank]
            assert outcome.startswith("RuntimeError" if how == "dcp" else "RankFailed")  # DCP's own exchange fails
            assert SILENCE - 1 < seconds < SILENCE + 10
        assert_whole(job.place, [0])


def test_a_group_that_is_destroyed_in_flight(jobs):
    cases = [
        ("starting", [0, 1], True),
        ("writing", [0, 1], True),
        ("starting", [0], True),
        ("writing", [1], True),
        ("starting", [0, 1], False),
    ]
    ended = jobs.run(*(("destroy", 2, {"when": when, "who": who, "sharded": sharded}) for when, who, sharded in cases))
    for (_, _, sharded), job in zip(cases, ended, strict=True):
        assert job.codes == (0, 0) and job.errors == ("", "")
        came = {outcome for (outcome, _), *_ in job.said}
        if sharded or came != {"done"}:  # torch 2.13 knows destroyed groups only where it sends from rank to rank
            assert all(outcome.startswith("RankFailed: the process group or a rank of it is gone") for outcome in came)
        for (_, seconds), *after in job.said:
            assert seconds < SILENCE
            gone = "InvalidArgument: the process group was destroyed: give one that exists, or none"
            assert after == ["done", "done", gone, gone, "done"]
        with ckptstore.open(job.place) as store:
            for rank in range(2):
                assert store.checkout(f"alone {rank}@3") == {"alone": rank}
        assert_whole(job.place, [0, 1, 4] if came == {"done"} else [0, 4])
