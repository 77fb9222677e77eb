"""Threads that begin once whoever starts them goes on."""

import sys
import threading
import time

import pytest

from ckptstore.errors import StateError
from ckptstore.operations.committing.handles import CommitHandle, start_thread


@pytest.fixture
def one_at_a_time():
    """Nobody loses Python's lock before it gives it back."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(before)


def test_who_starts_a_thread_does_not_wait_for_what_it_computes(one_at_a_time):
    begun = []

    def compute():
        begun.append(True)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass

    thread = start_thread(compute, "computing")
    found = list(begun)
    thread.join()

    assert not found
    assert begun


def test_a_thread_begins_also_when_its_starter_was_interrupted(monkeypatch):
    begun = threading.Event()
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_thread(begun.set, "begun")

    assert begun.wait(10)


def test_nobody_waits_for_a_commit_whose_beginning_was_interrupted():
    handle = CommitHandle(0, lambda: None)

    assert handle.done()
    with pytest.raises(StateError, match="interrupted"):
        handle.result()
