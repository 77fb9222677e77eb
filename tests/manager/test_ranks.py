"""What ranks agree on, over gloo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ckptstore

pytestmark = pytest.mark.slow

RANK = Path(__file__).with_name("rank.py")
SCENARIOS = [
    "signalled",
    "policies",
    "steps",
    "shards",
    "replicas",
    "failing",
    "policy_fails",
    "newest",
    "nothing",
    "looking_fails",
    "alone",
    "kept",
]


def run(folder, *scenarios, size=2):
    """What the ranks say of each scenario, and their statuses."""
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, folder, str(rank), str(size), *scenarios], stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    said = [[json.loads(line) for line in rank.communicate(timeout=300)[0].splitlines()] for rank in ranks]
    return said, [rank.returncode for rank in ranks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with ckptstore.open(folder / "store"):
        return folder


@pytest.fixture(scope="module")
def answers(folder):
    """Scenario → what each rank says of it."""
    said, statuses = run(folder, *SCENARIOS)
    assert statuses == [0, 0]
    return dict(zip(SCENARIOS, zip(*said, strict=True), strict=True))


def test_a_signal_of_one_leads_to_one_last_commit_of_all(answers, folder):
    assert answers["signalled"] == ([[0, 3, 4], 4], [[0, 3, 4], 4])
    with ckptstore.open(folder / "store", run="signalled") as store:
        assert store.steps() == [0, 3, 4]


def test_so_it_does_among_three(tmp_path):
    with ckptstore.open(tmp_path / "store"):
        pass
    said, _ = run(tmp_path, "signalled", size=3)
    assert said == [[[[0, 3, 4], 4]]] * 3


def test_the_policy_of_rank_0_decides(answers):
    assert answers["policies"] == ([2, [1, 4]], [2, [1, 4]])


def test_another_step_is_reported_to_all(answers):
    first, second = answers["steps"]
    assert first == second
    assert first[0] == "InvalidArgument" and "steps 3 to 4" in first[1]


def test_they_save_together_in_the_background(answers):
    assert answers["shards"] == ([[0, 2, 4], [2.0], 20], [[0, 2, 4], [2.0], 21])


def test_they_save_once_what_is_the_same(answers):
    assert answers["replicas"] == ([["w", [3000]]] * 4, [["w", [3000]]] * 4)


def test_a_failure_of_one_is_reported_to_all_and_they_stay_together(answers, folder):
    first, second = answers["failing"]
    assert first[0] == "RankFailed" and "rank 1 failed: StorageFull: no space" in first[1]
    assert second == ["StorageFull", "no space"]
    with ckptstore.open(folder / "store", run="failing") as store:
        assert store.steps() == [2]


def test_a_policy_that_fails_leaves_nobody_waiting(answers):
    assert [name for name, _ in answers["policy_fails"]] == ["ZeroDivisionError", "RankFailed"]


def test_all_restore_what_rank_0_finds_newest(answers):
    assert answers["newest"] == ([2, 2], [3, 2])


def test_all_learn_that_there_is_nothing(answers):
    assert [name for name, _ in answers["nothing"]] == ["StepNotFound"] * 2


def test_all_learn_that_rank_0_could_not_look(answers):
    assert [name for name, _ in answers["looking_fails"]] == ["StorageFull", "RankFailed"]


def test_groups_do_not_hear_of_each_other(answers):
    assert answers["alone"] == ([False, False, False], [True, False])


def test_old_steps_are_dropped(answers):
    assert answers["kept"] == ([4, 5], [4, 5])


@pytest.mark.crash
def test_a_rank_that_is_gone_is_reported(folder):
    (said, _), statuses = run(folder, "gone")
    assert statuses == [0, -signal.SIGKILL]
    assert said[0][0] == "RankFailed" and "gone" in said[0][1]
    with ckptstore.open(folder / "store", run="gone") as store:
        assert store.latest() in {1, 2}  # the last one was on its way


@pytest.mark.crash
def test_torchrun_is_told_to_go(tmp_path):
    """It passes the signal on to the ranks, one after the other."""
    with ckptstore.open(tmp_path / "store"):
        pass
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*torchrun, RANK.with_name("elastic.py"), tmp_path / "store"], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        assert [agent.stdout.readline() for _ in range(2)] == ["training\n"] * 2
        agent.send_signal(signal.SIGTERM)
        said = agent.stdout.read().splitlines()
    with ckptstore.open(tmp_path / "store") as store:
        assert said == [f"saved {store.latest()}"] * 2
        assert len(store.steps()) == 1
