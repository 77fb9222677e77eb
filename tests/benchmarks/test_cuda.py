import json

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device to measure")
def test_without_a_device_it_says_why(run):
    assert "finds no CUDA device here" in run("cuda", "--gib=1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_small_run_measures_every_row(tmp_path, run):
    run("cuda", "--gib=0.1", "--runs=1", f"--json={tmp_path}/all.json")
    found = json.loads((tmp_path / "all.json").read_text())
    rows = {"unchanged", "all-new, room on the device", "all-new, no room", "checkout"}
    assert all(found["samples"][row].keys() == {"ckptstore", "bare copy", "DCP"} for row in rows)
    assert found["correct"].keys() >= rows
    assert all(all(tools.values()) for tools in found["correct"].values())
    assert len(found["figures"]) == 7
