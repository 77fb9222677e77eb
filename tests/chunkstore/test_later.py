"""Nobody waits for what takes long to make."""

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

import ckptstore
from ckptstore.chunkstore import store
from ckptstore.chunkstore.later import Later
from ckptstore.format.codecs import tools
from ckptstore.format.codecs.making import MAKING
from ckptstore.format.codecs.pool import Pool
from ckptstore.testing.memory import peak_of


class Slow:
    """Makes what it is given, when it may; says how many did so at once."""

    def __init__(self):
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.made, self.most, self._now = [], 0, 0

    def __call__(self, *arguments):
        self.made.append(arguments)
        self._now += 1
        self.most = max(self.most, self._now)
        self.begun.set()
        assert self.go_on.wait(60)
        self._now -= 1
        return arguments


def test_who_asks_does_without_until_it_is_made():
    later, slow = Later("this"), Slow()
    assert [later.get(slow, 1), later.get(slow, 2), later.get(slow, 1)] == [None] * 3
    assert slow.begun.wait(60)
    assert later.get(slow, 1) is None
    slow.go_on.set()
    later.settle()
    assert [later.get(slow, 1), later.get(slow, 2)] == [(1,), (2,)]
    assert (sorted(slow.made), slow.most) == ([(1,), (2,)], 1), "once each, and one after the other"


def test_what_cannot_be_made_is_warned_of_once():
    later, tries = Later("this"), []

    def fail():
        tries.append(1)
        raise ValueError("no such processor")

    with pytest.warns(UserWarning, match=r"this does not work, .* ValueError\('no such processor'\)") as warned:
        assert later.get(fail) is None
        later.settle()
        assert later.get(fail) is None
        later.settle()
    assert (len(warned), tries) == (1, [1])


FORKED = """
import os, sys, threading
from ckptstore.chunkstore.later import Later
later, begun, go_on = Later("this"), threading.Event(), threading.Event()
def slow(number):
    begun.set()
    go_on.wait(60)
    return number
later.get(slow, 1)
begun.wait(60)
child = os.fork()
if not child:
    found = later.get(slow, 1), later.get(slow, 2)
    later.settle()
    sys.exit(0 if found == (None, None) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
later.settle()
print(later.get(slow, 1))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_without():
    """Who holds the lock there never releases it."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")


ENDING = """
import threading
from ckptstore.chunkstore.later import Later
later, begun = Later("this"), threading.Event()
def slow(number):
    print("begins", number, flush=True)
    begun.set()
    threading.main_thread().join()
    return number
later.get(slow, 1)
later.get(slow, 2)
begun.wait(60)
"""


def test_nothing_is_begun_for_an_interpreter_that_ends():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["begins", "1"], "")


def test_commits_and_checkouts_do_not_wait_for_numba(tmp_path, monkeypatch):
    later, slow = Later("this"), Slow()
    monkeypatch.setattr(tools, "_KEPT_AFTER", 0)
    monkeypatch.setattr(tools, "_COMPILED_AFTER", 0)
    monkeypatch.setattr(tools, "_POOL", Pool(tools.Tools))
    monkeypatch.setattr(MAKING, "get", None)  # set by the store
    monkeypatch.setattr(store, "LOOPS", SimpleNamespace(get=lambda make, *arguments: later.get(slow, make, *arguments)))
    weights = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0)) / 50
    with ckptstore.open(tmp_path / "store", compression="fast") as opened:
        opened.commit({"weights": weights}, step=1)
        assert opened.find(1).new_bytes < 0.9 * weights.nbytes
        assert torch.equal(opened.checkout(1)["weights"], weights)
    assert slow.made
    assert slow.begun.wait(60)
    assert not [made for made in slow.made if later.get(slow, *made)]
    slow.go_on.set()
    later.settle()


def test_memory_that_a_call_takes_is_measured_once_nothing_is_compiled(monkeypatch):
    begun = threading.Event()

    def make():
        begun.set()
        for _ in range(20):
            held = bytearray(1 << 24)
            time.sleep(0.01)
        return len(held)

    later = Later("this")
    monkeypatch.setattr("ckptstore.testing.memory.LOOPS", later)
    later.get(make)
    assert begun.wait(60)
    assert peak_of(lambda: time.sleep(0.1)) < 1 << 20
