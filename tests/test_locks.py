"""Locks that nobody leaves taken."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptstore.locks import Lock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(act):
    """Whether it comes to True in a process that is forked off here."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_what_a_thread_has_taken_that_stays_behind_is_free_in_a_fork():
    lock, taken, over = Lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            over.wait()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(hold)
        taken.wait()
        try:
            assert not lock.acquire(blocking=False)
            assert in_child(lambda: lock.acquire(blocking=False))
            assert not lock.acquire(blocking=False)
        finally:
            over.set()


def test_what_the_forking_thread_has_taken_is_its_own_in_a_fork():
    lock = Lock()

    def leave():
        lock.release()
        return lock.acquire(blocking=False)

    with lock:
        assert in_child(leave)
        with ThreadPoolExecutor(1) as thread:
            assert not thread.submit(lock.acquire, blocking=False).result()
