"""ckptstore beside torch.save, safetensors, DCP and torchsnapshot, on one machine and its own disk.

    python -m benchmarks.local [--mib 2048] [--runs 5] [--folder FOLDER]
        [--json FILE] [--markdown FILE] [--png FILE]

Every run trains the state one step further, so that nothing of it is known; then each tool saves the same tensors,
in an order that rotates, and so on for the other rows. Everything is on disk when a save ends. docs/benchmarks.md
says what the rows are.
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
from benchmarks.measuring import Samples, bytes_on_disk, copies, copy_all, equal, remove, rotated, write_all
from benchmarks.report import Report
from benchmarks.tools import Tensors, Tool, available
from benchmarks.trained import FROZEN, Trained, small


def main() -> None:
    """Measure, and tell."""
    arguments = _arguments()
    tools, missing = available()
    samples = Samples()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        trained = Trained(arguments.mib)
        size = sum(tensor.nbytes for tensor in trained.tensors().values())
        for run in range(arguments.runs):
            measure_whole(samples, rotated(tools, run), trained, folder, check=run == 0)
        for run in range(arguments.runs):
            measure_small(samples, rotated(tools, run), folder)
        for tool in tools:
            measure_peak(samples, tool, arguments.mib, folder)
        measure_history(samples, arguments.history, max(arguments.runs, 2) * 3, folder)
    report = Report(samples, [tool.name for tool in tools], missing, size)
    report.show()
    if arguments.json:
        arguments.json.write_text(report.as_json())
    if arguments.markdown:
        arguments.markdown.write_text(report.as_markdown())
    if arguments.png:
        report.draw(arguments.png)


def measure_whole(samples: Samples, tools: list[Tool], trained: Trained, folder: Path, *, check: bool) -> None:
    """The rows about the whole state: save all-new, unchanged and mostly frozen; load all and one tensor."""
    trained.train()
    tensors = trained.tensors()
    into = copies(tensors)
    samples.time("limit", "memcpy", partial(copy_all, tensors, into))
    samples.time("limit", "write+fsync", partial(write_all, tensors, folder / "limit"))
    (folder / "limit").unlink()
    for tool in tools:
        samples.time("save all-new", tool.name, partial(tool.save, tensors, folder / tool.name))
    for tool in tools:
        _measure_loads(samples, tool, tensors, into, folder / tool.name, check=check)
    for tool in tools:
        _measure_again(samples, "save unchanged", tool, tensors, folder)
    trained.train(frozen=FROZEN)
    for tool in tools:
        _measure_again(samples, "save 95% frozen", tool, tensors, folder)
    for tool in tools:
        remove(folder / tool.name)


def _measure_again(samples: Samples, row: str, tool: Tool, tensors: Tensors, folder: Path) -> None:
    """A further save: beside the first one for tools that know no steps."""
    place = folder / (tool.name if tool.keeps_steps else f"{tool.name}.again")
    before = bytes_on_disk(place)
    samples.time(row, tool.name, partial(tool.save, tensors, place))
    samples.add(f"{row}: MB on disk", tool.name, (bytes_on_disk(place) - before) / 1e6)
    if not tool.keeps_steps:
        remove(place)


def _measure_loads(samples: Samples, tool: Tool, tensors: Tensors, into: Tensors, folder: Path, *, check: bool) -> None:
    samples.add("save all-new: MB on disk", tool.name, bytes_on_disk(folder) / 1e6)
    for tensor in into.values():
        tensor.zero_()
    samples.time("load whole", tool.name, partial(tool.load, into, folder))
    name, like = max(tensors.items(), key=lambda item: item[1].nbytes)
    found: list[torch.Tensor] = []
    samples.time("load one tensor", tool.name, lambda: found.append(tool.load_one(name, like, folder)))
    if check and not (equal(tensors, into) and torch.equal(found[0], like)):
        raise AssertionError(f"{tool.name} gave back other bits than it was given")


def measure_small(samples: Samples, tools: list[Tool], folder: Path) -> None:
    """10,000 tensors of 1 KiB."""
    tensors = small()
    for tool in tools:
        samples.time("save 10,000 x 1 KiB", tool.name, partial(tool.save, tensors, folder / tool.name))
        remove(folder / tool.name)


def measure_peak(samples: Samples, tool: Tool, mib: float, folder: Path) -> None:
    """Memory that a save takes beside the state, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peak", tool.name, str(mib), str(folder / "peak")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    samples.add("peak extra memory of a save, MiB", tool.name, float(done.stdout.split()[-1]))
    remove(folder / "peak")


def measure_history(samples: Samples, most: int, runs: int, folder: Path) -> None:
    """A small commit on top of 10 and of `most` commits."""
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
    for store in stores.values():
        store.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=2048, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is taken")
    parser.add_argument("--history", type=int, default=10_000, help="commits below the last one of the history rows")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="write all samples here")
    parser.add_argument("--markdown", type=Path, help="write the README's table here")
    parser.add_argument("--png", type=Path, help="draw the ratios here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
