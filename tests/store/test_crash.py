"""SIGKILL at random points: whatever a writer said is done stays done, and nothing is half there.

A failure names the seed of its round; the writer draws the same operations from the same seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import ckptstore
from ckptstore.testing.audit import CHUNK_BYTES, Site, assert_nothing_leaked, assert_whole, site_of, state_of

KILLS = 250
KILLS_ON_SERVERS = 60
KILLS_WHILE_FOUNDING = 20
LONGEST_LIFE = 0.2
LONGEST_LIFE_ON_SERVERS = 0.6

pytestmark = pytest.mark.crash


class Nursery:
    """Makes writers and kills them."""

    def __init__(self):
        script = Path(__file__).with_name("crash_child.py")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self.process.stdin
        assert self.process.stdout
        self.orders, self.answers = self.process.stdin, self.process.stdout
        self.wait_for("ready", [])

    def life(self, place, seed, seconds, *, working=True):
        """What a writer said in its life of so many seconds, counted from its first work or from its birth."""
        self.orders.write(json.dumps([asdict(site_of(place)), seed]).encode() + b"\n")
        self.orders.flush()
        said: list[list[str]] = []
        pid = int(self.wait_for("pid", said)[1])
        if working and ["begin", "work", "-", "0"] not in said:
            said.append(self.wait_for("begin", said))
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        self.wait_for("dead", said)
        failed = [line for line in said if line[0] == "failed"]
        assert not failed, failed
        return said

    def wait_for(self, word, said):
        for line in self.answers:
            words = line.decode().split()
            if words[0] == word:
                return words
            said.append(words)
        raise AssertionError(f"the nursery died; before it said {said}")

    def close(self):
        self.orders.close()
        self.process.wait()
        self.answers.close()


@pytest.fixture(scope="module")
def nursery():
    made = Nursery()
    yield made
    made.close()


class Ledger:
    """Which steps must be there, and which may be, after all that writers have said."""

    def __init__(self):
        self.certain, self.possible = set(), set()

    def hear(self, said):
        for word, verb, run, step in said:
            address = (run, int(step))
            if verb == "commit":
                self.possible.add(address)
                if word == "done":
                    self.certain.add(address)
            if verb == "delete":
                self.certain.discard(address)
                if word == "done":
                    self.possible.discard(address)

    def see(self, live):
        assert live <= self.possible, f"appeared: {live - self.possible}"
        self.certain, self.possible = set(live), set(live)


def test_a_killed_writer_loses_nothing_and_leaves_nothing_behind(tmp_path, nursery):
    kill_again_and_again(tmp_path / "store", nursery, KILLS, LONGEST_LIFE)


@pytest.mark.timeout(900)
def test_a_killed_writer_on_servers(s3, postgres, nursery):
    kill_again_and_again(Site(s3.url, postgres, s3.options), nursery, KILLS_ON_SERVERS, LONGEST_LIFE_ON_SERVERS)


def kill_again_and_again(place, nursery, kills, longest_life):
    ledger, interrupted = Ledger(), 0
    for seed in range(kills):
        said = nursery.life(place, seed, random.Random(seed).uniform(0, longest_life))
        interrupted += said[-1][0] == "begin"
        ledger.hear(said)
        ledger.see(assert_whole(place, ledger.certain, verified=seed % 4 == 3))
        with site_of(place).open() as store:
            ledger.see({*ledger.certain, ("main", commit_anew(store, ledger))})
            if seed % 2:  # lest the checks take longer and longer
                ledger.see(ledger.certain - {("main", step) for step in collect(store)})
    assert interrupted > kills // 4
    assert_nothing_leaked(place)
    assert assert_whole(place) == ledger.certain


def commit_anew(store, ledger):
    step = 1 + (store.latest() or 0)
    ledger.possible.add(("main", step))
    store.commit(state_of("main", step), step=step)
    return step


def collect(store):
    return store.gc(keep=ckptstore.KeepLast(2), grace=0).deleted


def test_a_store_whose_founder_was_killed_opens(tmp_path, nursery):
    for seed in range(KILLS_WHILE_FOUNDING):
        place = tmp_path / str(seed)
        nursery.life(place, seed, random.Random(seed).uniform(0, 0.02), working=False)
        with site_of(place).open(chunk_bytes=CHUNK_BYTES) as store:
            store.commit(state_of("third", 7), step=7, run="third")
        assert ("third", 7) in assert_whole(place)
        assert_nothing_leaked(place)
