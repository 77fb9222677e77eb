"""Times of interleaved runs, and whether what was loaded is what was saved."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.tools import Tensors, sync

T = TypeVar("T")


class Samples:
    """Row → column → values, in the order in which they were measured."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.correct: dict[str, dict[str, bool]] = {}
        self.sizes: dict[str, int] = {}

    def add(self, row: str, column: str, value: float) -> None:
        """One more value."""
        self.values.setdefault(row, {}).setdefault(column, []).append(value)

    def time(self, row: str, column: str, act: Callable[[], object]) -> None:
        """How many seconds `act` takes, until a device may go on too, after everything earlier is done and on disk."""
        gc.collect()  # nobody pays for what others left
        os.sync()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        start = time.perf_counter()
        act()
        wait_for_device()
        self.add(row, column, time.perf_counter() - start)

    def check(self, row: str, column: str, saved: Tensors, found: Tensors) -> None:
        """Record whether what was found has the bits that were saved, and had them before."""
        columns = self.correct.setdefault(row, {})
        columns[column] = columns.get(column, True) and equal(saved, found)

    def median(self, row: str, column: str) -> float | None:
        """The median, or None when nothing was measured."""
        values = self.values.get(row, {}).get(column)
        return median(values) if values else None


def wait_for_device() -> None:
    """Until the current stream has done what it was given, if there is a device."""
    if torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()


def rotated(items: list[T], by: int) -> list[T]:
    """The items with another one in front."""
    return items[by % len(items) :] + items[: by % len(items)]


def bytes_on_disk(folder: Path) -> int:
    """What a folder occupies."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def remove(*folders: Path) -> None:
    """Remove folders that may not exist."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def copies(tensors: Tensors) -> Tensors:
    """Other memory of the same form, touched."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def copy_all(tensors: Tensors, into: Tensors) -> None:
    """The limit of loading."""
    for name, tensor in tensors.items():
        into[name].copy_(tensor)


def write_all(tensors: Tensors, path: Path) -> None:
    """The limit of saving: the same bytes in one file, flushed."""
    with path.open("wb") as file:
        for tensor in tensors.values():
            file.write(tensor.numpy().data)
        file.flush()
    sync(path, path.parent)


def read_all(*paths: Path) -> None:
    """Read files once: the limit of loading when nothing is cached. It leaves them in the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def warm(folder: Path) -> None:
    """Bring a folder's files into the page cache."""
    read_all(*_files(folder))


def cool(*paths: Path) -> None:
    """Take files, and those in folders, out of the page cache."""
    for path in paths:
        for file in _files(path) if path.is_dir() else [path]:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether names and all bits are the same."""
    return one.keys() == other.keys() and all(
        torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)) for name, tensor in one.items()
    )
