"""Jobs of several real processes in a gloo group."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import pytest

import ckptstore

ROOT = Path(__file__).parents[2]
PATIENCE = 150


class Crew:
    """Processes that stay, so that torch is imported once."""

    def __init__(self, folder, count):
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": paths}
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
        script = Path(__file__).with_name("rank_child.py")
        self.members = [
            subprocess.Popen(
                [sys.executable, script, folder, str(rank), str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for rank in range(count)
        ]

    def tell(self, name, count, **arguments):
        """Every rank's answer; None for one that died."""
        order = json.dumps([name, count, arguments]).encode() + b"\n"
        for member in self.members:
            if member.poll() is None:
                pipe(member.stdin).write(order)
                pipe(member.stdin).flush()
        return [self._answer(member) for member in self.members[:count]]

    def do(self, name, count, **arguments):
        """Every rank's value."""
        answers = self.tell(name, count, **arguments)
        assert all(answer is not None and "value" in answer for answer in answers), told(answers)
        return [answer["value"] for answer in answers]

    def close(self):
        for member in self.members:
            pipe(member.stdin).close()
        for member in self.members:
            try:
                member.wait(20)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
            pipe(member.stdout).close()

    def _answer(self, member):
        with selectors.DefaultSelector() as selector:
            selector.register(member.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), "a rank hangs"
        line = member.stdout.readline()
        return json.loads(line) if line else None


def pipe(end):
    assert end is not None
    return end


def told(answers):
    return "\n".join(answer.get("told", "") if answer else "dead" for answer in answers)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks at the marks in one of these hooks too
def pytest_collection_modifyitems(items):
    """One of the processes that run tests has all that need the crew, so that there is one crew."""
    for item in items:
        if "crew" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("crew"))


@pytest.fixture(scope="session")
def crew(tmp_path_factory):
    """Four ranks."""
    made = Crew(tmp_path_factory.mktemp("crew"), 4)
    yield made
    made.close()


@pytest.fixture
def doomed(tmp_path_factory):
    """Crews that may die."""
    made = []

    def start(count):
        made.append(Crew(tmp_path_factory.mktemp("doomed"), count))
        return made[-1]

    yield start
    for each in made:
        for member in each.members:
            member.kill()
        each.close()


@pytest.fixture
def place(tmp_path):
    """The URL of an empty store whose chunks are so small that tensors of the tests span several."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
        return store.url


@pytest.fixture
def store(place):
    with ckptstore.open(place) as store:
        yield store
