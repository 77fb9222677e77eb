"""Many processes and threads on one store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ckptstore.store import Store
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    Site,
    assert_exact,
    assert_nothing_leaked,
    assert_whole,
    site_of,
    state_of,
)
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import Meanwhile
from ckptstore.testing.storage import together

CHURN_SECONDS = 8
REMOTE_CHURN_SECONDS = 60
IMPORTING_SECONDS = 4

CHILD = Path(__file__).with_name("concurrent_child.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def at_once(*works):
    """What comes of (place, act, number, seconds) processes that start at the same moment."""
    start = time.time() + IMPORTING_SECONDS
    orders = [
        json.dumps([asdict(site_of(place)), act, number, start, seconds]) for place, act, number, seconds in works
    ]
    done = subprocess.run(
        [sys.executable, CHILD], input="\n".join(orders), env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(works)
    return results


def outcomes(results, act):
    return [came for did, _, came in results if did == act]


def test_processes_open_an_empty_place_and_commit_at_once(tmp_path):
    counts = {tmp_path / f"{count} {attempt}": count for count in (2, 4) for attempt in range(4)}
    results = at_once(*((place, "found", number, 0) for place, count in counts.items() for number in range(count)))
    assert {came for _, _, came in results} == {None}
    for place, count in counts.items():
        assert assert_whole(place) == {("main", number) for number in range(count)}
        assert_nothing_leaked(place)


def test_processes_commit_the_same_at_once(tmp_path):
    places = [tmp_path / f"{attempt}" for attempt in range(4)]
    results = at_once(*((place, "same", number, 0) for place in places for number in range(4)))
    assert {came for _, _, came in results} == {None}
    for place in places:
        assert assert_whole(place) == {("main", 7)}
        assert_nothing_leaked(place)


@pytest.mark.parametrize("count", [2, 4])
def test_of_processes_that_commit_something_else_to_one_step_one_wins(tmp_path, count):
    results = at_once(*((tmp_path / "store", "other", number, 0) for number in range(count)))
    winners = [number for _, number, came in results if came is None]
    losers = [came for _, _, came in results if came is not None]
    assert len(winners) == 1
    assert all(came.startswith("StepExists: step 7 of run 'main'") for came in losers)
    with site_of(tmp_path / "store").open() as store:
        assert store.read(7, "step") == winners[0]
        assert store.verify().ok
    assert_nothing_leaked(tmp_path / "store")


def test_committers_collectors_and_readers(tmp_path):
    acts = ["committer"] * 3 + ["collector"] * 2 + ["reader"] * 2 + ["verifier"]
    churn(tmp_path / "store", acts, CHURN_SECONDS)


@pytest.mark.slow
def test_committers_collectors_and_readers_of_a_bucket(s3, postgres):
    acts = ["committer"] * 8 + ["collector"] * 2 + ["reader"] * 2 + ["verifier"]
    place = Site(s3.url, postgres, s3.options)
    with place.open(chunk_bytes=CHUNK_BYTES):
        pass  # this server knows no conditional writes, so that two who found a store at once may both think they did
    churn(place, acts, REMOTE_CHURN_SECONDS)


def churn(place, acts, seconds):
    results = at_once(*((place, act, number, seconds) for number, act in enumerate(acts)))
    assert set(outcomes(results, "collector")) == {None}
    assert outcomes(results, "verifier") == [None]
    assert all(isinstance(read, int) and read > 0 for read in outcomes(results, "reader")), results
    assert all(isinstance(kept, list) for kept in outcomes(results, "committer")), results
    kept = {(f"run {number}", step) for act, number, came in results if act == "committer" for step in came}
    live = assert_whole(place, kept)
    assert {address for address in live if address[0] != "shared"} == kept
    assert_nothing_leaked(place)
    assert assert_whole(place, kept) == live


def interrupted_store(place, verb, act, run="main"):
    parts = site_of(place).parts(create=True)
    return Store(replace(parts, storage=Meanwhile(parts.storage, verb, act)), run)


def test_a_reader_goes_on_when_gc_takes_the_copy_it_was_reading(tmp_path):
    place, state = tmp_path / "store", state_of("main", 0)
    later = site_of(place).open(run="later", chunk_bytes=CHUNK_BYTES)
    with interrupted_store(place, "put", lambda: later.commit(state, step=0), "earlier") as earlier:
        earlier.commit(state, step=0)
    assert later.stats().packs == {"live": 2}

    def drop_the_earlier():
        earlier.delete(0)
        earlier.gc(grace=0)

    with interrupted_store(place, "get_ranges", drop_the_earlier, "later") as store:
        assert_same(store.checkout(0), state)
    assert later.stats().packs == {"live": 1}
    later.close()


def test_threads_share_a_store(tmp_path):
    with site_of(tmp_path / "store").open(chunk_bytes=CHUNK_BYTES) as store:

        def work(number):
            run = f"run {number}"
            for step in range(4):
                store.commit(state_of(run, step), step=step, run=run)
                assert_exact(store, run, step)
                store.delete(f"{run}@{step}")
                store.gc(grace=0)
                store.commit(state_of(run, step), step=step, run=run)

        together(work, 4)
    assert assert_whole(tmp_path / "store") == {(f"run {number}", step) for number in range(4) for step in range(4)}
    assert_nothing_leaked(tmp_path / "store")


def test_threads_commit_in_the_background_of_one_store(tmp_path):
    with site_of(tmp_path / "store").open(chunk_bytes=CHUNK_BYTES) as store:
        together(lambda number: store.commit_async(state_of("main", number), step=number).result(), 8)
    assert assert_whole(tmp_path / "store") == {("main", number) for number in range(8)}
    assert_nothing_leaked(tmp_path / "store")


FORKING = """
import json, os, sys
from ckptstore.testing.audit import CHUNK_BYTES, Site, state_of
site = Site(**json.loads(sys.argv[1]))
store = site.open(chunk_bytes=CHUNK_BYTES)
(site.storage_options or {}).clear()  # the caller's own
store.commit(state_of("main", 0), step=0)
store.checkout(0)
child = os.fork()
for step in (1, 3, 5) if child else (2, 4, 6):
    store.checkout(0)
    store.commit_async(state_of("main", step), step=step, run="main").result()
if child:
    assert os.waitpid(child, 0)[1] == 0
    store.commit(state_of("main", 7), step=7)
"""


@pytest.fixture(params=["folder", "servers"])
def place(request, tmp_path):
    if request.param == "folder":
        return Site(str(tmp_path / "store"))
    bucket = request.getfixturevalue("s3")
    return Site(bucket.url, request.getfixturevalue("postgres"), bucket.options)


def test_a_fork_of_an_open_store(place):
    subprocess.run([sys.executable, "-c", FORKING, json.dumps(asdict(place))], env=ENVIRONMENT, check=True)
    assert assert_whole(place) == {("main", step) for step in range(8)}
    assert_nothing_leaked(place)


def test_a_store_left_open_across_its_own_commits_sees_those_of_others(tmp_path):
    with site_of(tmp_path / "store").open() as one, site_of(tmp_path / "store").open() as other:
        one.commit({"x": 1}, step=1)
        assert other.latest() == 1
        other.commit({"x": 2}, step=2)
        assert one.checkout() == {"x": 2}
