"""The catalog as commits pile up: what stays as it was, and what grows.

    python -m benchmarks.growth {sqlite,postgres} [--counts 10 100 1000 10000] [--leaves 1000] [--runs 20]
        [--folder FOLDER] [--json FILE] [--markdown FILE]

Stores grow to these counts by the transactions of commits; then every operation is timed on all of them in turn.
docs/benchmarks.md says what the rows are. Fails when a commit cannot be found whole at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import growth
from benchmarks.growing import Growing
from benchmarks.measuring import Samples, rotated
from benchmarks.report import Report, add_files
from ckptstore import KeepLast
from ckptstore.catalog.opening import sqlite_url
from ckptstore.testing.servers import new_database, postgres_server

KEPT = 3
END = f"gc to the last {KEPT}"
LISTING = ("steps", "log", "plan gc", END)
"""Rows that look at every commit."""


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    samples = Samples()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        DATABASES[arguments.database](Path(folder)) as new,
    ):
        stores = {f"{count:,} commits": Growing(new(), arguments.leaves) for count in arguments.counts}
        for count, store in zip(arguments.counts, stores.values(), strict=True):
            store.grow(count)
        for run in range(arguments.runs):
            for column in rotated(list(stores), run):
                measure(samples, column, stores[column])
        for column, store in stores.items():
            drop_history(samples, column, store)
        for run in range(arguments.runs):
            for column in rotated(list(stores), run):
                measure_after(samples, column, stores[column])
        assert all(store.whole() for store in stores.values())
    columns = list(stores)
    Report(samples, columns, growth(columns[0], columns[-1])).publish(arguments)


def measure(samples: Samples, column: str, store: Growing) -> None:
    """Every operation once. As many commits come as go."""
    _time(samples, "commit", column, store, store.commit)
    steps = store.store.steps()
    step = random.choice(steps)
    _time(samples, "look up a path", column, store, lambda: store.look_up(step))
    _time(samples, "find", column, store, store.store.find)
    _time(samples, "latest", column, store, store.store.latest)
    _time(samples, "steps", column, store, store.store.steps)
    _time(samples, "log", column, store, store.store.log)
    _time(samples, "plan gc", column, store, lambda: store.store.plan_gc(KeepLast(KEPT)))
    oldest = store.store.find(steps[0])
    _time(samples, "gc of a commit", column, store, lambda: store.collect([oldest]))


def drop_history(samples: Samples, column: str, store: Growing) -> None:
    """Drop all but the last commits, once."""
    gone = store.store.plan_gc(KeepLast(KEPT)).delete
    _time(samples, END, column, store, lambda: store.collect(gone))
    assert len(store.store.steps()) == KEPT


def measure_after(samples: Samples, column: str, store: Growing) -> None:
    """What is left of the history's weight."""
    _time(samples, "commit, after that", column, store, store.commit)
    _time(samples, "plan gc, after that", column, store, lambda: store.store.plan_gc(KeepLast(KEPT)))
    oldest = store.store.find(store.store.steps()[0])
    _time(samples, "gc of a commit, after that", column, store, lambda: store.collect([oldest]))


def _time(samples: Samples, row: str, column: str, store: Growing, act: Callable[[], object]) -> None:
    """Record how long the catalog takes for it, in all and method by method."""
    # Not for every row: reading all steps drives out of the caches what a call would find there.
    commits = len(store.store.steps()) if row in LISTING else None
    os.sync()
    store.timed.taken()
    act()
    taken = store.timed.taken()
    total = sum(taken.values())
    samples.add(row, column, total)
    if commits is not None:
        samples.add(f"{row}, per commit", column, total / commits)
    if len(taken) > 1:
        for method, seconds in taken.items():
            samples.add(f"{row}: {method}", column, seconds)


@contextmanager
def _sqlite(folder: Path) -> Iterator[Callable[[], str]]:
    yield lambda: sqlite_url(folder / f"{uuid.uuid4().hex}.sqlite")


@contextmanager
def _postgres(folder: Path) -> Iterator[Callable[[], str]]:
    with postgres_server(folder) as server:
        yield partial(new_database, server)


DATABASES = {"sqlite": _sqlite, "postgres": _postgres}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", choices=list(DATABASES))
    parser.add_argument("--counts", type=int, nargs="+", default=[10, 100, 1000, 10_000], help="commits in a store")
    parser.add_argument("--leaves", type=int, default=1000, help="leaves of each commit")
    parser.add_argument("--runs", type=int, default=20, help="interleaved runs of which the median is taken")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on a disk, for the databases")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
