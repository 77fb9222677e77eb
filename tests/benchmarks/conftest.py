import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    """Runs a benchmark, in an empty folder if it wants one; gives what it printed."""

    def run(name, *arguments, folder=True):
        places = [f"--folder={tmp_path}"] if folder else []
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments, *places]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
