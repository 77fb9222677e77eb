"""python -m benchmarks.first_call TOOL MIB DEVICE FOLDER: for how many seconds this process's first save blocks it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from benchmarks.background import BACKGROUND
from benchmarks.measuring import Samples
from benchmarks.trained import Trained


def main(name: str, mib: float, device: str, folder: Path) -> None:
    """Train, save, and wait until that is on disk."""
    warnings.simplefilter("ignore")  # DCP's, about one process
    samples, trained = Samples(), Trained(mib, device=device)
    tool = next(make for make in BACKGROUND if make.name == name)(trained, folder)
    samples.time("first", name, tool.save)
    tool.finish()
    tool.close()
    print(samples.median("first", name))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
