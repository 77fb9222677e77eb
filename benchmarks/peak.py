"""python -m benchmarks.peak TOOL MIB FOLDER: the MiB of memory that a save takes at its peak, beside the state."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.tools import available


def main(name: str, mib: float, folder: Path) -> None:
    """Save a small state first, so that what every first save loads is not counted."""
    folder.mkdir()
    tool = next(tool for tool in available()[0] if tool.name == name)
    tool.save({"warm": torch.randn(1024)}, folder / "warm")
    tensors = {f"tensor{number}": torch.randn(int(mib * 2**20) // 4 // 16 // 1024, 1024) for number in range(16)}
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    tool.save(tensors, folder / "measured")
    print(f"{(_status('VmHWM') - before) / 1024:.1f}")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
