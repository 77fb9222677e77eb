"""What one rank measures, together with the others; the first one keeps the times."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from benchmarks.measuring import Samples, equal, remove, rotated
from benchmarks.rank_tools import RANK_TOOLS, RankTool
from benchmarks.tools import Tensors
from benchmarks.trained import Trained


def measure(
    rank: int, ranks: int, mib: float, layers: int, runs: int, folder: Path, found: SimpleQueue[Samples]
) -> None:
    """Train with FSDP2, and save and load with every tool in turn."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous{ranks}", rank=rank, world_size=ranks)
    job = RankJob(Trained(mib, layers, fully_shard), ranks)
    for run in range(runs):
        job.run_once(run, folder)
    if rank == 0:
        found.put(job.samples)
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still free tensors, which aborts a Python that is ending: pytorch issue 190489


class RankJob:
    """The rows of one number of ranks."""

    def __init__(self, trained: Trained, ranks: int) -> None:
        self.samples = Samples()
        self._trained, self._ranks = trained, ranks
        self._into = {name: torch.zeros_like(tensor) for name, tensor in trained.tensors().items()}
        self.samples.sizes["state"] = sum(tensor.nbytes for tensor in self._into.values())
        self._needed = sum(tensor.nbytes for tensor in locals_of(self._into).values())

    def run_once(self, run: int, folder: Path) -> None:
        """A step of training, and every row."""
        tools = rotated([make(folder / f"{make.name}{self._ranks}") for make in RANK_TOOLS], run)
        self._trained.train()
        tensors = self._trained.tensors()
        for tool in tools:
            self._time("save all-new", tool, partial(tool.save, tensors))
        for tool in tools:
            tool.load(self._into)  # files are in the page cache from here on, and modules imported
            self._clear()
            before = bytes_read()
            self._time("load whole", tool, partial(tool.load, self._into))
            self._add_reads(tool, bytes_read() - before)
            self._check("load whole", tool, tensors)
        for tool in tools:
            self._time("save unchanged", tool, partial(tool.save, tensors))
            self._clear()
            tool.load(self._into)
            self._check("save unchanged", tool, tensors)
        for tool in tools:
            tool.close()
        dist.barrier()
        if dist.get_rank() == 0:
            remove(*(tool.folder for tool in tools))
        dist.barrier()

    def _time(self, row: str, tool: RankTool, act: Callable[[], None]) -> None:
        """Until all ranks are done."""
        gc.collect()  # nobody pays for what others left
        dist.barrier()
        if dist.get_rank() == 0:
            os.sync()
        dist.barrier()
        start = time.perf_counter()
        act()
        dist.barrier()
        self.samples.add(self._row(row), tool.name, time.perf_counter() - start)

    def _add_reads(self, tool: RankTool, count: int) -> None:
        """The share of the rank that read most of what it needs."""
        share = torch.tensor(count / self._needed)
        dist.all_reduce(share, dist.ReduceOp.MAX)
        self.samples.add(self._row("load whole: read, share"), tool.name, share.item())

    def _check(self, row: str, tool: RankTool, tensors: Tensors) -> None:
        same = torch.tensor(equal(locals_of(tensors), locals_of(self._into)), dtype=torch.int)
        dist.all_reduce(same, dist.ReduceOp.MIN)
        columns = self.samples.correct.setdefault(self._row(row), {})
        columns[tool.name] = columns.get(tool.name, True) and bool(same)

    def _clear(self) -> None:
        for tensor in locals_of(self._into).values():
            tensor.zero_()

    def _row(self, row: str) -> str:
        return f"{self._ranks} ranks, {row}"


def locals_of(tensors: Tensors) -> Tensors:
    """What this rank has of them."""
    return {name: tensor.to_local() for name, tensor in tensors.items() if isinstance(tensor, DTensor)}


def bytes_read() -> int:
    """By this process, from anything that is read as files are, whether cached or not."""
    return int(Path("/proc/self/io").read_text().split()[1])
