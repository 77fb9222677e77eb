"""Fuzz one target with atheris, guided by coverage: `run_atheris.py TARGET [libFuzzer's options]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ckptstore"]):
    from ckptstore.testing.targets import TARGETS, no_code

MEMORY = Path("/dev/shm")


def main(name: str, *options: str) -> None:
    """Runs until it is stopped, or for `-runs=` or `-max_total_time=`; what fails is written to `crash-…`."""
    target = TARGETS[name]
    tempfile.tempdir = str(MEMORY) if MEMORY.is_dir() else None

    def guarded(data: bytes) -> None:
        with no_code():
            target(data)

    atheris.Setup(
        [sys.argv[0], "-timeout=20", "-rss_limit_mb=3000", "-max_len=120", "-len_control=0", *options], guarded
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
