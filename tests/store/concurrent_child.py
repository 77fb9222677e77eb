"""Processes that work on one store at once. Reads lines of JSON, [place, act, number, start, seconds], forks a process
for each, which waits for the start and prints [act, number, what came of it]. At the end of input it waits for all.

Torch and all that is needed is imported once, before the forks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

import ckptstore
import ckptstore.operations.committing.background
import ckptstore.operations.committing.commit
import ckptstore.operations.loading.checkout
from ckptstore.testing.audit import CHUNK_BYTES, Site, assert_exact, state_of

SHARED = "shared"
MOST_KEPT = 12
"""Steps of a run, so that readers and verifiers come by all of them again and again."""


def found(place, number, _):
    """Open the place and commit a step of its own."""
    with open_here(place) as store:
        store.commit(state_of("main", number), step=number)


def same(place, *_):
    """Commit what the others commit."""
    with open_here(place) as store:
        store.commit(state_of("main", 7), step=7)


def other(place, number, _):
    """Commit something else to the step of the others."""
    with open_here(place) as store:
        store.commit(state_of("main", number), step=7)


def committer(place, number, seconds):
    """Commit to a run of its own, and to one that all share; the steps of the own run that must be there."""
    run, chance, kept = f"run {number}", random.Random(number), []
    with open_here(place, run) as store:
        for step in until(seconds):
            handle = store.commit_async(state_of(run, step), step=step)
            kept.append(step)
            if chance.random() < 0.7:
                handle.result()
            if chance.random() < 0.3 or len(kept) > MOST_KEPT:
                gone = kept.pop(chance.randrange(len(kept)))
                handle.result()
                store.delete(gone)
            store.commit(state_of(SHARED, step), step=step, run=SHARED)
    return kept


def collector(place, _, seconds):
    """Collect without grace, all the time."""
    with open_here(place, SHARED) as store:
        for _round in until(seconds):
            store.gc(keep=ckptstore.KeepLast(3) if SHARED in names(store) else None, grace=0, most=1)


def reader(place, number, seconds):
    """Read random steps; one that cannot be read must have been deleted meanwhile."""
    chance, read = random.Random(number), 0
    with open_here(place) as store:
        for _round in until(seconds):
            live = addresses(store)
            if not live:
                continue
            run, step = chance.choice(live)
            try:
                assert_exact(store, run, step)
                read += 1
            except (ckptstore.StepNotFound, ckptstore.MissingData):
                assert (run, step) not in addresses(store), f"{run}@{step} is live and was not read"
    return read


def verifier(place, _, seconds):
    """Verify all the time."""
    with open_here(place) as store:
        for _round in until(seconds):
            report = store.verify()
            assert report.ok, report.problems


def open_here(place, run="main"):
    return Site(**place).open(run, chunk_bytes=CHUNK_BYTES)


def names(store):
    return [run.name for run in store.runs()]


def addresses(store):
    return [(run, commit.step) for run in names(store) for commit in store._parts.catalog.commits(run)]


def until(seconds):
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield step
        step += 1


def work(place, act, number, start, seconds):
    time.sleep(max(0, start - time.time()))
    try:
        came = globals()[act](place, number, seconds)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
        came = f"{type(error).__name__}: {error}"
    os.write(1, (json.dumps([act, number, came]) + "\n").encode())


def main():
    for line in sys.stdin:
        if os.fork() == 0:
            work(*json.loads(line))
            os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
