"""Attributes that are made once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptstore.cached import cached_property


class Thing:
    made = 0

    @cached_property
    def part(self) -> int:
        """What it is."""
        self.made += 1
        return self.made


def test_it_is_made_once_for_each():
    one, other = Thing(), Thing()
    assert [one.part, one.part, other.part] == [1, 1, 1]
    assert Thing.part.__doc__ == "What it is."


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_waits_for_no_thread_that_was_making_one():
    begun, over = threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def part(self) -> bool:
            begun.set()
            return self is first and over.wait()

    first = Slow()
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(lambda: first.part)
        begun.wait()
        child = os.fork()
        if child == 0:
            threading.Timer(20, os._exit, [1]).start()
            os._exit(int(Slow().part))
        try:
            assert os.waitpid(child, 0)[1] == 0
        finally:
            over.set()
        assert making.result()
