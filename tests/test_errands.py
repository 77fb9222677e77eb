from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import NoReturn

import pytest

from ckptstore import errands as module
from ckptstore.errands import Errands, uninterrupted


@contextmanager
def refusing():
    """SIGUSR1 raises InterruptedError."""

    def refuse(*_: object) -> NoReturn:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, refuse)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_what_was_not_begun_when_its_caller_was_interrupted_is_not_done(monkeypatch):
    monkeypatch.setattr(module, "_IDLE", [])
    errands, gate = Errands(), threading.Event()
    before = threading.Thread(target=errands.run, args=(lambda: gate.wait(60),))
    before.start()
    done: list[str] = []
    with refusing(), pytest.raises(InterruptedError):
        threading.Timer(0.2, interrupt).start()
        errands.run(lambda: done.append("begun"), lambda: done.append("given up"))
    assert not gate.is_set() and before.is_alive()
    gate.set()
    before.join()
    assert errands.run(lambda: list(done)) == []


def test_the_main_thread_lets_another_do_it():
    worker = uninterrupted(threading.current_thread)
    assert worker is not threading.current_thread()
    assert uninterrupted(threading.current_thread) is worker
    assert uninterrupted(lambda: uninterrupted(threading.current_thread)) is worker


def test_other_threads_do_it_themselves():
    found: list[threading.Thread] = []
    other = threading.Thread(target=lambda: found.append(uninterrupted(threading.current_thread)))
    other.start()
    other.join()
    assert found == [other]


def test_it_raises_what_the_work_raises():
    worker = uninterrupted(threading.current_thread)
    with pytest.raises(KeyError, match="odd"):
        uninterrupted(lambda: dict[str, int]()["odd"])
    assert uninterrupted(threading.current_thread) is worker


def test_what_is_interrupted_holds_up_nothing_and_is_done():
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(60)
        ended.set()

    def interrupt_it() -> None:
        assert begun.wait(60)
        interrupt()

    with refusing(), pytest.raises(InterruptedError):
        threading.Thread(target=interrupt_it).start()
        uninterrupted(work)
    assert uninterrupted(lambda: 1) == 1
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(60)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    uninterrupted(lambda: None)
    child = os.fork()
    if not child:
        os._exit(uninterrupted(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


_LATE = """
import atexit, threading
atexit.register(lambda: print(uninterrupted(threading.current_thread) is worker))
from ckptstore.errands import uninterrupted
worker = uninterrupted(threading.current_thread)
"""


def test_threads_are_there_until_the_interpreter_ends():
    done = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_where_no_thread_begins_any_more_the_main_thread_does_it(monkeypatch):
    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(module, "_IDLE", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert uninterrupted(threading.current_thread) is threading.current_thread()
