import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_small_run_measures_every_row(tmp_path):
    written = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    small = ["--mib=8", "--runs=1", "--history=12", f"--folder={tmp_path}"]
    command = [sys.executable, "-m", "benchmarks.local", *small, *written]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    assert len(found["figures"]) == 8
    assert all(value["value"] > 0 for value in found["figures"].values())
    peers = {"ckptstore", "DCP", "torch.save", "safetensors"}
    for row in ("save all-new", "save unchanged", "save 95% frozen", "load whole", "load one tensor"):
        assert peers <= found["samples"][row].keys()
        assert row in done.stdout
    assert found["samples"]["save 95% frozen: MB on disk"]["ckptstore"][0] < 2
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}
    assert len({line.count("|") for line in (tmp_path / "all.md").read_text().splitlines()}) == 1


def test_bits_are_compared():
    sys.path.insert(0, str(ROOT))
    import torch

    from benchmarks.measuring import equal

    assert equal({"a": torch.tensor([0.0, torch.nan])}, {"a": torch.tensor([0.0, torch.nan])})
    assert not equal({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])})
