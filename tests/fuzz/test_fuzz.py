"""Hostile bytes give an error of the tree or correct data, soon, and run nothing. `run_atheris.py` goes deeper."""

from __future__ import annotations

import os
import pickle
import random
import signal
import tempfile

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptstore.format.codecs import tools
from ckptstore.testing.hostile import state_at, template
from ckptstore.testing.targets import TARGETS, CodeRan, no_code

EXAMPLES = {"settings": 1000, "pack": 500, "payload": 1000, "manifest": 300, "commit": 100, "store": 6}
RANDOM = {"settings": 3000, "pack": 1500, "payload": 5000, "manifest": 1000, "commit": 200, "store": 6}
SECONDS = 20


@pytest.fixture(autouse=True)
def guarded(tmp_path, monkeypatch):
    """Nothing may be executed, and no input may take long."""

    def hang(*_):
        raise TimeoutError(f"an input took {SECONDS} seconds")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGALRM, hang)
    yield
    signal.signal(signal.SIGALRM, before)


def act(name, data):
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with no_code():
            TARGETS[name](data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes(name):
    @settings(max_examples=EXAMPLES[name], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=60))
    def hold(data):
        act(name, data)

    hold()


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes(name):
    chance = random.Random(name)
    for _ in range(RANDOM[name]):
        act(name, chance.randbytes(chance.choice([8, 16, 40, 80])))


def test_the_guard_sees_what_a_pickle_runs():
    harmful = pickle.dumps(os.getpid)
    for act in (lambda: pickle.loads(harmful), lambda: os.system("true"), lambda: exec("1")):
        with pytest.raises(CodeRan), no_code():
            act()


def test_loops_are_not_compiled_meanwhile(monkeypatch):
    monkeypatch.setattr(tools, "_KEPT_AFTER", 0)
    monkeypatch.setattr(tools, "fastest_loops", lambda *, compiling: exec("1"))  # as numba does
    chance = random.Random(0)
    for _ in range(100):
        act("payload", chance.randbytes(40))


def test_the_template_has_what_is_to_be_altered():
    assert len(template().documents) == 2
    entries, *_ = msgspec.msgpack.decode(template().decoded[0])["manifest"]
    assert {path.partition("/")[0] for path in entries} == state_at(1).keys()
