from __future__ import annotations

import json

import pytest

import ckptstore
from ckptstore.testing.equality import assert_same


@pytest.fixture
def target(run):
    run("init", "bucket", "--digest", "sha256")
    return "bucket"


def test_push_brings_what_the_target_lacks(url, target, output, asked):
    assert output("push", url, target, "best", 0).splitlines()[1].startswith("pushed main@100: ")
    (made,) = asked("push", url, target)
    assert (made["run"], made["step"], made["parent"], made["tags"]) == ("main", 200, "main@100", [])
    assert made["metadata"] == asked("show", url, 200)["metadata"]
    assert made["created"] == asked("show", url, 200)["created"]
    assert output("push", url, target) == "nothing to push: the target has all of it\n"
    assert asked("push", url, target) == []
    with ckptstore.open(url) as here, ckptstore.open(target) as there:
        for step in (0, 100, 200):
            assert_same(there.checkout(step), here.checkout(step))
    assert asked("verify", target)["ok"]


def test_push_is_from_a_run_and_to_a_run(url, target, asked, run):
    assert [made["run"] for made in asked("push", url, target, "--run", "side")] == ["side"]
    assert [made["run"] for made in asked("push", url, target, "side@210", "--target-run", "mine")] == ["mine"]
    assert "no run 'typo'" in run("push", url, target, "--run", "typo", code=1).stderr
    assert [made["run"] for made in asked("push", url, url, "latest", "--target-run", "fork")] == ["fork"]
    assert "where it is" in run("push", url, url, code=1).stderr


def test_push_makes_no_store(url, run, tmp_path):
    assert "make a store with init" in run("push", url, "nowhere", code=1).stderr
    assert not (tmp_path / "nowhere").exists()


def test_push_tells_of_another_state(url, target, run):
    with ckptstore.open(target) as store:
        store.commit({"another": 1}, step=100)
    assert "step 100 of run 'main'" in run("push", url, target, code=1).stderr
    with ckptstore.open(target) as store:
        assert store.steps() == [0, 100]


def test_push_has_keys_and_places_for_both(url, run, asked, tmp_path, s3, postgres):
    for name in ("here", "there"):
        (tmp_path / name).write_text(name)
    run("init", "sealed", "--encrypt", "--key-file", "here")
    options = json.dumps(s3.options)
    reached = ("--catalog", postgres, "--storage-options", options)
    run("init", s3.url, "--encrypt", "--key-file", "there", *reached)
    assert len(asked("push", url, "sealed", "--target-key-file", "here")) == 3
    beside = ("--target-catalog", postgres, "--target-key-file", "there", "--target-storage-options", options)
    assert len(asked("push", "sealed", s3.url, "--key-file", "here", *beside)) == 3
    assert asked("steps", s3.url, "--key-file", "there", *reached) == [0, 100, 200]
    assert asked("verify", s3.url, "--key-file", "there", *reached)["ok"]
