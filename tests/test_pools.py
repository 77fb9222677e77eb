"""Who can have no thread is told so, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import ckptstore
from ckptstore import OutOfThreads, errands
from ckptstore.pools import Pool
from ckptstore.testing.equality import assert_same

STATE = {f"w{number}": torch.arange(2 << 20) + number for number in range(8)}


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(STATE, step=0)
        yield store


def new_state():
    return {name: tensor + 1 for name, tensor in STATE.items()}


@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.commit(new_state(), step=1),
        lambda store: store.commit_async(new_state(), step=1),
        lambda store: store.verify(),
        lambda store: store.repair(),
        lambda store: store.tag("best", 0),
        lambda store: store.checkout(0),
    ],
    ids=["commit", "commit_async", "verify", "repair", "tag", "checkout"],
)
def test_no_more_threads(store, use, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(errands, "_IDLE", [])
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OutOfThreads, match=r"pids\.max"):
            use(store)
    store.commit_async(new_state(), step=1).result()
    assert store.steps() == [0, 1]
    assert_same(store.checkout(1), new_state())
    assert store.verify().ok


_LATE = """
import atexit, sys, torch, ckptstore
store = ckptstore.open(sys.argv[1])
store.commit({f"w{number}": torch.ones(2 << 20) for number in range(8)}, step=0)
def late():
    for use in (store.verify, lambda: store.checkout(0), store.plan_repair):
        try:
            use()
        except ckptstore.InterpreterExiting as error:
            print(error)
atexit.register(late)
"""


def test_when_the_interpreter_exits(tmp_path):
    done = subprocess.run([sys.executable, "-c", _LATE, tmp_path / "store"], capture_output=True, text=True, check=True)
    assert done.stdout.count("do this before its last line") == 3
    assert not done.stderr


def test_a_pool_that_is_shut_down_says_so():
    pool = Pool(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)
