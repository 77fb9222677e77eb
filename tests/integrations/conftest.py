"""Jobs of several real processes in a gloo group."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ckptstore
from ckptstore.state.pieces import PiecedTensor

ROOT = Path(__file__).parents[2]
PATIENCE = 150


class Crew:
    """Processes that stay, so that torch is imported once."""

    def __init__(self, folder, count):
        self.members = [start("rank_child.py", folder, str(rank), str(count)) for rank in range(count)]

    def ask(self, name, count, **arguments):
        """Every rank's answer; None for one that died."""
        order = json.dumps([name, count, arguments]).encode() + b"\n"
        for member in self.members:
            if member.poll() is None:
                pipe(member.stdin).write(order)
                pipe(member.stdin).flush()
        return [answer_of(member) for member in self.members[:count]]

    def do(self, name, count, **arguments):
        """Every rank's value."""
        answers = self.ask(name, count, **arguments)
        assert all(answer is not None and "value" in answer for answer in answers), tracebacks(answers)
        return [answer["value"] for answer in answers]

    def close(self):
        close(*self.members)


class Jobs:
    """Runs jobs whose ranks end each in its own way; see `ending_child`."""

    def __init__(self, folders):
        self._folders = folders
        self._process = start("ending_child.py")

    def run(self, *jobs):
        """What came of these, which run at the same time: [scenario, count of ranks, arguments]."""
        folders = [self._folders.mktemp("job") for _ in jobs]
        for folder in folders:
            ckptstore.open(folder / "store", chunk_bytes=4096).close()
        orders = [[name, count, str(folder), how] for folder, (name, count, how) in zip(folders, jobs, strict=True)]
        pipe(self._process.stdin).write(json.dumps(orders).encode() + b"\n")
        pipe(self._process.stdin).flush()
        answers = answer_of(self._process)
        return [
            Ended(str(folder / "store"), *zip(*ranks, strict=True))
            for folder, ranks in zip(folders, answers, strict=True)
        ]

    def close(self):
        close(self._process)


class Ended(NamedTuple):
    """A job that is over: its store, and by rank the exit code, what it said, and what is on its stderr."""

    place: str
    codes: tuple[int, ...]
    said: tuple[list[Any], ...]
    errors: tuple[str, ...]


def start(script, *arguments):
    """A process that reads and writes lines of JSON."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, Path(__file__).with_name(script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def answer_of(process):
    """Its next line; None when it died."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(PATIENCE), "a rank hangs"
    line = process.stdout.readline()
    return json.loads(line) if line else None


def close(*processes):
    """Let them end by themselves."""
    for process in processes:
        pipe(process.stdin).close()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pipe(process.stdout).close()


def pipe(end):
    assert end is not None
    return end


def tracebacks(answers):
    return "\n".join(answer.get("traceback", "") if answer else "dead" for answer in answers)


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


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    made = Jobs(tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def boxes(monkeypatch):
    """How many bytes each read of a tensor of files gives."""
    sizes = []
    box = PiecedTensor.box

    def counted(self, start, stop):
        data = box(self, start, stop)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(PiecedTensor, "box", counted)
    return sizes


@pytest.fixture
def place(tmp_path):
    """The URL of an empty store whose chunks are so small that tensors of the tests span several."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
        return store.url


@pytest.fixture
def store(place):
    with ckptstore.open(place) as store:
        yield store
