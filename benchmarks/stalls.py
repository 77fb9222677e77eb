"""What training feels of a background save: ckptstore's commit_async beside DCP's async_save, on one machine.

    python -m benchmarks.stalls [--mib 2048] [--runs 5] [--steps 20] [--folder FOLDER] [--only ROWS]
        [--device cuda] [--json FILE] [--markdown FILE]

The first rows show for how long the call blocks when no other save is in flight. Lost is how much longer the steps of
training take in which a save is begun or in flight, in a loop that saves every tenth step, than others of that loop;
by whole loops, how much longer the loop takes for each of its saves than the same loop without.
Every save ends on disk. In the first run each races with a step of training, is loaded and compared. Ends with status 1
when other bits came back.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.background import BACKGROUND, Background
from benchmarks.figures import STALLS
from benchmarks.measuring import Samples, copies, rotated, wait_for_device
from benchmarks.report import Report, add_files
from benchmarks.trained import FROZEN, Trained

EVERY = 10


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    warnings.simplefilter("ignore")  # DCP's, about one process
    samples, trained = Samples(), Trained(arguments.mib, device=arguments.device)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in trained.tensors().values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for rows in arguments.only or MEASURES:
            for run in range(arguments.runs):
                MEASURES[rows](samples, trained, run, arguments, Path(folder))
    Report(samples, [tool.name for tool in BACKGROUND], STALLS).publish(arguments)


def measure_blocked(samples: Samples, trained: Trained, run: int, arguments: argparse.Namespace, folder: Path) -> None:
    """How long the call blocks: the first one, all-new ones, and ones of a state that is mostly frozen."""
    for make in rotated(list(BACKGROUND), run):
        tool = make(trained, folder / f"{make.name}{run}")
        _measure_call(samples, "first call", tool)
        trained.train()
        _save_and_finish(tool)
        trained.train()
        _measure_call(samples, "all-new", tool)
        for _ in range(2):
            trained.train(frozen=FROZEN)
            _save_and_finish(tool)
        trained.train(frozen=FROZEN)
        _measure_call(samples, "95% frozen", tool)
        if run == 0:
            _check(samples, tool)
        tool.close()


def measure_first(samples: Samples, trained: Trained, run: int, arguments: argparse.Namespace, folder: Path) -> None:
    """How long the first call of a process blocks, which imports what it needs."""
    for tool in rotated([each.name for each in BACKGROUND], run):
        given: list[str | Path] = [tool, str(arguments.mib), trained.device, folder / "first"]
        command = [sys.executable, "-m", "benchmarks.first_call", *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        samples.add("first call of a process", tool, float(done.stdout.split()[-1]))


def _measure_call(samples: Samples, row: str, tool: Background) -> None:
    samples.time(row, tool.name, tool.save)
    tool.finish()


def _save_and_finish(tool: Background) -> None:
    tool.save()
    tool.finish()


def _check(samples: Samples, tool: Background) -> None:
    """Save, train at once, and see whether what was saved is what there was."""
    expected = {name: tensor.clone() for name, tensor in tool.trained.tensors().items()}
    _loop(tool.trained, tool, 1)
    into = copies(expected)
    tool.load(into)
    samples.check("all-new", tool.name, expected, into)


def measure_lost(samples: Samples, trained: Trained, run: int, arguments: argparse.Namespace, folder: Path) -> None:
    """What a training loop loses to each save."""
    tools = [make(trained, folder / f"{make.name}{run}") for make in BACKGROUND]
    for tool in tools:
        _save_and_finish(tool)  # the memory is there from here on
    bare = f"{arguments.steps} steps without saves"
    loops: dict[Background | None, Loop] = {}
    for using in rotated([None, *tools], run):
        os.sync()
        loops[using] = _loop(trained, using, arguments.steps)
    samples.add(bare, BACKGROUND[0].name, loops[None].seconds)
    saves = -(-arguments.steps // EVERY)
    for tool in tools:
        samples.add("lost to a save", tool.name, loops[tool].lost(loops[None]) / saves)
        samples.add("lost, by whole loops", tool.name, (loops[tool].seconds - loops[None].seconds) / saves)
        tool.close()


@dataclass
class Loop:
    """Seconds of each step of a loop of training: those with a save begun or in flight, and the others."""

    busy: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(self.busy) + sum(self.idle)

    def lost(self, bare: Loop) -> float:
        """How much longer busy steps took than others of this loop, or of a `bare` one where all are busy."""
        return sum(self.busy) - len(self.busy) * median(self.idle or bare.idle)


def _loop(trained: Trained, tool: Background | None, steps: int) -> Loop:
    """Some steps of training, with saves, until the last of these is on disk."""
    loop = Loop()
    for step in range(steps):
        start, is_busy = time.perf_counter(), tool is not None and tool.is_busy()
        if tool and step % EVERY == 0:
            tool.finish()
            tool.save()
            is_busy = True
        trained.train()
        if tool and step == steps - 1:
            tool.finish()
        wait_for_device()
        (loop.busy if is_busy else loop.idle).append(time.perf_counter() - start)
    return loop


MEASURES = {"blocked": measure_blocked, "first": measure_first, "lost": measure_lost}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=2048, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of which the median is taken")
    parser.add_argument("--steps", type=int, default=20, help="steps of the training loop")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where training takes place")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="these rows alone; may be repeated")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
