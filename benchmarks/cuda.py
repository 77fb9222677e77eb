"""What a commit in the background costs training on a CUDA device, beside the bare copies.

    python -m benchmarks.cuda [--gib 12] [--runs 3] [--folder FOLDER] [--json FILE] [--markdown FILE]

The time of a commit is what training loses: until `commit_async` has returned and the current stream may go on. Every
state that was stored is loaded and compared. Without a CUDA device, it says so and measures nothing.
docs/performance.md says what the rows are. Ends with status 1 when other bits came back than were given.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import ckptstore
from benchmarks.figures import BARE, CUDA, OWN
from benchmarks.measuring import Samples, copies, copy_all, remove
from benchmarks.report import Report, add_files
from benchmarks.tools import Tensors
from ckptstore.state.cuda import CudaLane
from ckptstore.state.fingerprints import fingerprints

LARGE, SMALL = 600, 300
"""How many tensors: weights and moments of a model, and as many biases and norms of 8 KiB."""


def main() -> None:
    """Measure, and tell."""
    arguments = _arguments()
    if not torch.cuda.is_available():
        print(f"nothing is measured: torch {torch.__version__} finds no CUDA device here")
        return
    samples = Samples()
    state = _state(arguments.gib)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in state.values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for _ in range(arguments.runs):
            measure_store(samples, state, Path(folder) / "store", room=True)
            measure_store(samples, state, Path(folder) / "store", room=False)
            measure_bare(samples, state)
    Report(samples, [OWN, BARE], CUDA).publish(arguments)


def measure_bare(samples: Samples, state: Tensors) -> None:
    """The limits: the same bytes read once, copied on the device, copied to pinned memory and back."""
    there = copies(state)
    here = {name: torch.empty_like(tensor, device="cpu", pin_memory=True) for name, tensor in state.items()}
    for name in state:
        here[name].zero_()
    _time(samples, "unchanged", BARE, lambda: fingerprints(list(state.values())))
    _time(samples, "all-new, room on the device", BARE, partial(copy_all, state, there))
    _time(samples, "all-new, no room", BARE, partial(_copy_all, state, here))
    _time(samples, "checkout", BARE, partial(_copy_all, here, there))


def measure_store(samples: Samples, state: Tensors, folder: Path, *, room: bool) -> None:
    """A first commit, one of new values, one of the same again, and a checkout."""
    into = copies(state)
    how = "room on the device" if room else "no room"
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # as a step does, before which nothing is copied there
    torch.cuda.empty_cache()  # a first call takes its memory from nobody
    torch.accelerator.empty_host_cache()
    kept = nullcontext() if room else mock.patch.object(CudaLane, "spare_bytes", return_value=0)
    with kept, ckptstore.open(folder, compression="none") as store:
        for step, row in enumerate([f"first call, {how}", f"all-new, {how}"]):
            for tensor in state.values():
                tensor.normal_()
            _measure_commit(samples, row, store, state, into, step)
        if room:
            _measure_commit(samples, "unchanged", store, state, into, 2)
            _time(samples, "checkout", OWN, partial(store.checkout, into=into))
            samples.check("checkout", OWN, state, into)
    remove(folder)


def _measure_commit(
    samples: Samples, row: str, store: ckptstore.Store, state: Tensors, into: Tensors, step: int
) -> None:
    handles: list[ckptstore.CommitHandle] = []
    _time(samples, row, OWN, lambda: handles.append(store.commit_async(state, step=step)))
    handles[0].result()
    for tensor in into.values():
        tensor.zero_()
    store.checkout(step, into=into)
    samples.check(row, OWN, state, into)


def _time(samples: Samples, row: str, column: str, act: Callable[[], object]) -> None:
    """Until the device is idle, or the current stream may go on."""

    def until_idle() -> None:
        act()
        torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    samples.time(row, column, until_idle)


def _copy_all(source: Tensors, target: Tensors) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor, non_blocking=True)


def _state(gib: float) -> dict[str, Tensor]:
    large = {f"large{number}": torch.empty(int(gib * 2**30 / LARGE / 4), device="cuda") for number in range(LARGE)}
    return large | {f"small{number}": torch.empty(2048, device="cuda") for number in range(SMALL)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12, help="size of the state")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the median is taken")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on a disk with three times the size")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
