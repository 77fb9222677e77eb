"""ckptstore beside torch.save, safetensors, DCP and torchsnapshot, on one machine and its own disk.

    python -m benchmarks.local [--mib 2048] [--runs 5] [--folder FOLDER] [--only ROWS]
        [--json FILE] [--markdown FILE]

Every run trains the state one step further, so that nothing of it is known; then each tool saves the same tensors,
in an order that rotates, and so on for the other rows. Everything is on disk when a save ends. docs/benchmarks.md
says what the rows are. Ends with status 1 when a tool gave back other bits than it was given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

import ckptstore
from benchmarks.figures import LOCAL
from benchmarks.measuring import (
    Samples,
    bytes_on_disk,
    cool,
    copies,
    copy_all,
    read_all,
    remove,
    rotated,
    warm,
    write_all,
)
from benchmarks.report import Report, add_files
from benchmarks.tools import Tensors, Tool, available
from benchmarks.trained import FROZEN, Trained, small

LEAVES = 1000
"""Small tensors beside the one that is read alone."""


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    tools, missing = available()
    samples = Samples()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        for rows in arguments.only or MEASURES:
            MEASURES[rows](samples, tools, arguments, Path(temporary))
    Report(samples, [tool.name for tool in tools], LOCAL, missing).publish(arguments)


def measure_whole(samples: Samples, tools: list[Tool], arguments: argparse.Namespace, folder: Path) -> None:
    """The rows about the whole state: save all-new, unchanged and mostly frozen; load all and one tensor."""
    trained = Trained(arguments.mib)
    tensors = trained.tensors()
    into = copies(tensors)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in tensors.values())
    for run in range(arguments.runs):
        _measure_whole_once(samples, rotated(tools, run), trained, into, folder, check=run == 0)


def _measure_whole_once(
    samples: Samples, tools: list[Tool], trained: Trained, into: Tensors, folder: Path, *, check: bool
) -> None:
    trained.train()
    tensors = trained.tensors()
    samples.time("limit", "memcpy", partial(copy_all, tensors, into))
    samples.time("limit", "write+fsync", partial(write_all, tensors, folder / "limit"))
    cool(folder / "limit")
    samples.time("limit", "disk read", partial(read_all, folder / "limit"))
    (folder / "limit").unlink()
    for tool in tools:
        samples.time("save all-new", tool.name, partial(tool.save, tensors, folder / tool.name))
    for tool in tools:
        _measure_loads(samples, tool, tensors, into, folder / tool.name, check=check)
    for tool in tools:
        _measure_again(samples, "save unchanged", tool, tensors, into if check else None, folder / tool.name)
    trained.train(frozen=FROZEN)
    for tool in tools:
        _measure_again(samples, "save 95% frozen", tool, tensors, into if check else None, folder / tool.name)
    for tool in tools:
        remove(folder / tool.name)


def _measure_again(
    samples: Samples, row: str, tool: Tool, tensors: Tensors, into: Tensors | None, folder: Path
) -> None:
    """A further save. Tools that know no steps write a new folder; their last one goes first, for want of disk."""
    if not tool.keeps_steps:
        remove(folder)
    before = bytes_on_disk(folder)
    samples.time(row, tool.name, partial(tool.save, tensors, folder))
    samples.add(f"{row}: MB on disk", tool.name, (bytes_on_disk(folder) - before) / 1e6)
    if into is not None:
        _check(samples, row, tool, tensors, into, folder)


def _check(samples: Samples, row: str, tool: Tool, tensors: Tensors, into: Tensors, folder: Path) -> None:
    """Load what a save left, and compare."""
    for tensor in into.values():
        tensor.zero_()
    tool.load(into, folder)
    samples.check(row, tool.name, tensors, into)


def _measure_loads(samples: Samples, tool: Tool, tensors: Tensors, into: Tensors, folder: Path, *, check: bool) -> None:
    samples.add("save all-new: MB on disk", tool.name, bytes_on_disk(folder) / 1e6)
    for tensor in into.values():
        tensor.zero_()
    warm(folder)
    samples.time("load whole", tool.name, partial(tool.load, into, folder))
    name, like = max(tensors.items(), key=lambda item: item[1].nbytes)
    found: list[torch.Tensor] = []
    samples.time("load one tensor", tool.name, lambda: found.append(tool.load_one(name, like, folder)))
    samples.sizes["one tensor"] = like.nbytes
    made: list[Tensors] = []
    samples.time("load whole, new tensors", tool.name, lambda: made.append(tool.load_new(tensors, folder)))
    if check:
        samples.check("load whole, new tensors", tool.name, tensors, made[0])
    made.clear()
    cool(folder)
    samples.time("load whole, cold", tool.name, partial(tool.load, into, folder))
    if check:
        samples.check("save all-new", tool.name, tensors, into)
        samples.check("load whole", tool.name, tensors, into)
        samples.check("load one tensor", tool.name, {name: like}, {name: found[0]})


def measure_small(samples: Samples, tools: list[Tool], arguments: argparse.Namespace, folder: Path) -> None:
    """10,000 tensors of 1 KiB, others in each run."""
    row = "save 10,000 x 1 KiB"
    for run in range(arguments.runs):
        tensors = small()
        for tool in rotated(tools, run):
            samples.time(row, tool.name, partial(tool.save, tensors, folder / tool.name))
            if run == 0:
                _check(samples, row, tool, tensors, copies(tensors), folder / tool.name)
            remove(folder / tool.name)


def measure_peak(samples: Samples, tools: list[Tool], arguments: argparse.Namespace, folder: Path) -> None:
    """Memory that a save takes beside the state, in a process of its own."""
    for tool in tools:
        command = [sys.executable, "-m", "benchmarks.peak", tool.name, str(arguments.mib), str(folder / "peak")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        samples.add("peak extra memory of a save, MiB", tool.name, float(done.stdout.split()[-1]))
        remove(folder / "peak")


def measure_history(samples: Samples, tools: list[Tool], arguments: argparse.Namespace, folder: Path) -> None:
    """A small commit on top of 10 and of many commits."""
    most, runs = arguments.history, max(arguments.runs, 2) * 3
    tensors = {f"layer{number}": torch.randn(64, 64) for number in range(20)}

    def change(step: int) -> dict[str, Tensors]:
        tensors[f"layer{step % 20}"].add_(0.01)
        return {"state": tensors}

    stores = {}
    for row, count in (("commit on top of 10 commits", 10), ("commit on top of many commits", most)):
        stores[row] = ckptstore.open(folder / f"history{count}")
        for step in range(count - 1):
            stores[row].commit(change(step), step=step)
    state = change(most)
    for store in stores.values():
        store.commit(state, step=most)  # from here on both know the same, and what comes is as new to both
    for step in range(most + 1, most + 1 + runs):
        state = change(step)
        for row in rotated(list(stores), step):
            samples.time(row, "ckptstore", partial(stores[row].commit, state, step=step))
    for row, store in stores.items():
        samples.check(row, "ckptstore", tensors, store.checkout("latest")["state"])
    _measure_read(samples, stores["commit on top of many commits"], most + 1 + runs, runs)
    for store in stores.values():
        store.close()


def _measure_read(samples: Samples, store: ckptstore.Store, step: int, runs: int) -> None:
    """One tensor of a commit of many leaves, from a store that is open and held many commits before."""
    tensors = {f"layer{number}": torch.randn(64, 64) for number in range(LEAVES)} | {"head": torch.randn(4608, 1024)}
    head, into = tensors["head"], torch.zeros(4608, 1024)
    store.commit({"state": tensors}, step=step)
    samples.sizes["tensor read alone"] = head.nbytes
    for _ in range(runs):
        samples.time("limit", "memcpy of it", partial(into.copy_, head))
        samples.time("read one tensor", "ckptstore", partial(store.read, step, "state/head"))
    samples.check("read one tensor", "ckptstore", {"head": head}, {"head": store.read(step, "state/head")})


MEASURES = {"whole": measure_whole, "small": measure_small, "peak": measure_peak, "history": measure_history}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=2048, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is taken")
    parser.add_argument("--history", type=int, default=10_000, help="commits below the last one of the history rows")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="these rows alone; may be repeated")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
