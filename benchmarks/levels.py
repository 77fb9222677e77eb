"""The levels of `compression=` beside each other, over the steps of one training.

    python -m benchmarks.levels [--mib 1024] [--commits 4] [--apart 10] [--runs 3] [--folder FOLDER] [--json FILE]
        [--markdown FILE]

Every run trains on and makes a new store of each level; each of them gets the same commits, `apart` steps from one to
the next, in an order that rotates, and gives them back into live tensors, from the page cache and from the disk. In one
more store of level "best" no commit has a parent. docs/benchmarks.md says what the rows are.
Ends with status 1 when one gave back other bits than it was given.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import get_args

import ckptstore
from benchmarks import figures
from benchmarks.measuring import Samples, bytes_on_disk, cool, copies, read_all, remove, rotated, warm, write_all
from benchmarks.report import Report, add_files
from benchmarks.tools import Tensors
from benchmarks.trained import Trained
from ckptstore.format.codecs import Level

LEVELS: dict[str, Level] = {level: level for level in get_args(Level)}
ALONE = "best, alone"
"""Every commit begins a run."""
COLUMNS: dict[str, Level] = {**LEVELS, ALONE: "best"}


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    samples = Samples()
    trained = Trained(arguments.mib)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in trained.tensors().values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for run in range(arguments.runs):
            measure(samples, trained, Path(folder), rotated(list(COLUMNS), run), arguments)
    Report(samples, [*COLUMNS, "disk read"], figures.LEVELS).publish(arguments)


def measure(
    samples: Samples, trained: Trained, folder: Path, columns: list[str], arguments: argparse.Namespace
) -> None:
    """All rows once."""
    into = copies(trained.tensors())
    for number in range(arguments.commits):
        for _ in range(arguments.apart):
            trained.train()
        tensors = trained.tensors()
        which = "1" if number == 0 else "a later one"
        for column in columns:
            with _opened(folder, column, number) as store:
                _measure_commit(samples, f"commit {which}", column, store, tensors, number)
        _measure_reading(samples, f"checkout {which}, cold", tensors, folder / "raw")
        for column in columns:
            with _opened(folder, column, number) as store:
                _measure_checkout(samples, f"checkout {which}", column, store, tensors, into)
    remove(*(folder / column for column in columns))


def _opened(folder: Path, column: str, number: int) -> ckptstore.Store:
    run = f"run{number}" if column == ALONE else "main"
    return ckptstore.open(folder / column, compression=COLUMNS[column], run=run)


def _measure_commit(
    samples: Samples, row: str, column: str, store: ckptstore.Store, tensors: Tensors, step: int
) -> None:
    before = bytes_on_disk(Path(store.url))
    samples.time(row, column, partial(store.commit, {"state": tensors}, step=step))
    samples.add(f"{row}: MB on disk", column, (bytes_on_disk(Path(store.url)) - before) / 1e6)


def _measure_reading(samples: Samples, row: str, tensors: Tensors, path: Path) -> None:
    """The disk's own reading of the raw bytes."""
    write_all(tensors, path)
    cool(path)
    samples.time(row, "disk read", partial(read_all, path))
    path.unlink()


def _measure_checkout(
    samples: Samples, row: str, column: str, store: ckptstore.Store, tensors: Tensors, into: Tensors
) -> None:
    for row_name, prepare in ((row, warm), (f"{row}, cold", cool)):
        for tensor in into.values():
            tensor.zero_()
        prepare(Path(store.url))
        samples.time(row_name, column, partial(store.checkout, "latest", into={"state": into}))
        samples.check(row_name, column, tensors, into)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=1024, help="size of the state")
    parser.add_argument("--commits", type=int, default=4, help="commits of each run")
    parser.add_argument("--apart", type=int, default=10, help="steps of training between two commits")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of which the median is taken")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
