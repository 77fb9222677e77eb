"""python -m benchmarks.peak TOOL MIB FOLDER: the MiB of memory that a save takes at its peak, beside the state."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import torch

from benchmarks.tools import TOOLS
from benchmarks.trained import Trained


def main(name: str, mib: float, folder: Path) -> None:
    """Save a small state first, so that what every first save loads is not counted."""
    folder.mkdir()
    tool = next(make for make in TOOLS if make.name == name)()
    tool.save({"warm": torch.randn(1024)}, folder / "warm")
    tensors = Trained(mib).tensors()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what training freed would hide what the save takes
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    tool.save(tensors, folder / "measured")
    print(f"{(_status('VmHWM') - before) / 1024:.1f}")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
