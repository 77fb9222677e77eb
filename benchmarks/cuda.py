"""What a commit in the background costs training on a CUDA device, beside the bare copies and DCP's async_save.

    python -m benchmarks.cuda [--gib 12] [--runs 3] [--folder FOLDER] [--only COLUMN] [--json FILE] [--markdown FILE]

The time of a commit is what training loses: until `commit_async` has returned and the current stream may go on. Every
state that was stored is loaded and compared. Without a CUDA device, it says so and measures nothing.
docs/performance.md says what the rows are. Ends with status 1 when other bits came back than were given.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import ckptstore
from benchmarks.background import AsyncSaves
from benchmarks.figures import BARE, CUDA, OWN, PEER
from benchmarks.measuring import Samples, copies, copy_all, remove
from benchmarks.report import Report, add_files
from benchmarks.tools import Dcp, Tensors
from ckptstore.state.devices.cuda import CudaLane
from ckptstore.state.devices.fingerprints import fingerprints, prepare

ROOMS = "room on the device", "no room"
LARGE, SMALL = 600, 300
"""How many tensors: weights and moments of a model, and as many biases and norms of 8 KiB."""


def main() -> None:
    """Measure, and report."""
    arguments = _arguments()
    if not torch.cuda.is_available():
        print(f"nothing is measured: torch {torch.__version__} finds no CUDA device here")
        return
    samples = Samples()
    state = _state(arguments.gib)
    samples.sizes["state"] = sum(tensor.nbytes for tensor in state.values())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for _ in range(arguments.runs):
            for column in arguments.only or MEASURES:
                MEASURES[column](samples, state, Path(folder) / "saved")
    Report(samples, [OWN, BARE, PEER], CUDA).publish(arguments)


def measure_own(samples: Samples, state: Tensors, folder: Path) -> None:
    """With room for copies on the device, and without."""
    for room in True, False:
        measure_store(samples, state, folder, room=room)


def measure_bare(samples: Samples, state: Tensors, folder: Path) -> None:
    """The limits: the same bytes read once, copied on the device, copied to pinned memory and back."""
    there, here = copies(state), _pinned(state)
    prepare(next(iter(state.values())).device)
    samples.time("unchanged", BARE, lambda: fingerprints(list(state.values())))
    samples.time("all-new, room on the device", BARE, partial(copy_all, state, there))
    samples.time("all-new, no room", BARE, partial(_copy_all, state, here))
    samples.time("checkout", BARE, partial(_copy_all, here, there))


def measure_store(samples: Samples, state: Tensors, folder: Path, *, room: bool) -> None:
    """A first commit, one of new values, one of the same again, and a checkout."""
    into = copies(state)
    how = ROOMS[not room]
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # as a step does, before which nothing is copied there
    torch.cuda.empty_cache()  # a first call takes its memory from nobody
    torch.accelerator.empty_host_cache()
    kept = nullcontext() if room else mock.patch.object(CudaLane, "spare_bytes", return_value=0)
    with kept, ckptstore.open(folder, compression="none") as store:
        for step, row in enumerate([f"first call, {how}", f"all-new, {how}"]):
            _change(state)
            _measure_commit(samples, row, store, state, into, step)
        if room:
            _measure_commit(samples, "unchanged", store, state, into, 2)
            samples.time("checkout", OWN, partial(store.checkout, into=into))
            samples.check("checkout", OWN, state, into)
    remove(folder)


def measure_peer(samples: Samples, state: Tensors, folder: Path) -> None:
    """The same by DCP, which has all copied to pinned memory each time, whatever room there is."""
    into = copies(state)
    torch.accelerator.empty_host_cache()
    saves = AsyncSaves(folder, pinned=True)
    for rows in [f"first call, {how}" for how in ROOMS], [f"all-new, {how}" for how in ROOMS], ["unchanged"]:
        if rows != ["unchanged"]:
            _change(state)
        samples.time(rows[0], PEER, partial(saves.begin, state))
        for row in rows[1:]:
            samples.add(row, PEER, samples.values[rows[0]][PEER][-1])
        saves.finish()
    samples.time("checkout", PEER, partial(Dcp().load, into, folder))
    samples.check("checkout", PEER, state, into)
    saves.close()


def _measure_commit(
    samples: Samples, row: str, store: ckptstore.Store, state: Tensors, into: Tensors, step: int
) -> None:
    handles: list[ckptstore.CommitHandle] = []
    samples.time(row, OWN, lambda: handles.append(store.commit_async(state, step=step)))
    handles[0].result()
    for tensor in into.values():
        tensor.zero_()
    store.checkout(step, into=into)
    samples.check(row, OWN, state, into)


def _change(state: Tensors) -> None:
    for tensor in state.values():
        tensor.normal_()


def _pinned(state: Tensors) -> Tensors:
    """Pinned memory of the same form, touched; all in one, since torch's allocator rounds sizes up."""
    sizes = [tensor.numel() for tensor in state.values()]
    parts = torch.zeros(sum(sizes), pin_memory=True).split(sizes)
    return {name: part.view_as(tensor) for (name, tensor), part in zip(state.items(), parts, strict=True)}


def _copy_all(source: Tensors, target: Tensors) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor, non_blocking=True)


MEASURES = {OWN: measure_own, BARE: measure_bare, PEER: measure_peer}


def _state(gib: float) -> dict[str, Tensor]:
    large = {f"large{number}": torch.empty(int(gib * 2**30 / LARGE / 4), device="cuda") for number in range(LARGE)}
    return large | {f"small{number}": torch.empty(2048, device="cuda") for number in range(SMALL)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12, help="size of the state")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the median is taken")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="a folder on a disk with three times the size")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="this column alone; may be repeated")
    add_files(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
