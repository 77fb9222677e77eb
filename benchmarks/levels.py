"""The levels of `compression=` beside each other, over the steps of one training.

    python -m benchmarks.levels [--mib 1024] [--commits 4] [--apart 10] [--runs 3] [--folder FOLDER] [--json FILE]
        [--markdown FILE]

Every run trains on and makes a new store of each level; each of them gets the same commits, `apart` steps from one to
the next, in an order that rotates, and gives them back into live tensors. docs/benchmarks.md says what the rows are.
Ends with status 1 when one gave back other bits than it was given.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import get_args

import ckptstore
from benchmarks.figures import LEVELS
from benchmarks.measuring import Samples, bytes_on_disk, copies, remove, rotated, warm
from benchmarks.report import Report, add_files
from benchmarks.tools import Tensors
from benchmarks.trained import Trained
from ckptstore.format.codecs import Level

NAMES: tuple[Level, ...] = get_args(Level)


def main() -> None:
    """Measure, and tell."""
    arguments = _arguments()
    samples = Samples()
    trained = Trained(arguments.mib)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in trained.tensors().values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for run in range(arguments.runs):
            measure(samples, trained, Path(folder), rotated(list(NAMES), run), arguments)
    Report(samples, list(NAMES), LEVELS).publish(arguments)


def measure(
    samples: Samples, trained: Trained, folder: Path, levels: list[Level], arguments: argparse.Namespace
) -> None:
    """All rows once."""
    stores = {level: ckptstore.open(folder / level, compression=level) for level in levels}
    into = copies(trained.tensors())
    for number in range(arguments.commits):
        for _ in range(arguments.apart):
            trained.train()
        tensors = trained.tensors()
        for level, store in stores.items():
            _measure_commit(samples, "commit 1" if number == 0 else "commit a later one", level, store, tensors, number)
        for level, store in stores.items():
            row = "checkout 1" if number == 0 else "checkout a later one"
            _measure_checkout(samples, row, level, store, tensors, into)
    for store in stores.values():
        store.close()
    remove(*(folder / level for level in levels))


def _measure_commit(
    samples: Samples, row: str, level: Level, store: ckptstore.Store, tensors: Tensors, step: int
) -> None:
    before = bytes_on_disk(Path(store.url))
    samples.time(row, level, partial(store.commit, {"state": tensors}, step=step))
    samples.add(f"{row}: MB on disk", level, (bytes_on_disk(Path(store.url)) - before) / 1e6)


def _measure_checkout(
    samples: Samples, row: str, level: Level, store: ckptstore.Store, tensors: Tensors, into: Tensors
) -> None:
    for tensor in into.values():
        tensor.zero_()
    warm(Path(store.url))
    samples.time(row, level, partial(store.checkout, "latest", into={"state": into}))
    samples.check(row, level, tensors, into)


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
