import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = {"ckptstore", "DCP", "torch.save", "safetensors"}
SMALL = ["--mib=8", "--runs=1", "--history=12"]


@pytest.mark.slow
def test_a_small_run_measures_every_timed_row(tmp_path, run):
    only = ["--only=whole", "--only=small", "--only=history"]
    shown = run("local", *SMALL, *only, f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md")
    found = json.loads((tmp_path / "all.json").read_text())
    assert len(found["figures"]) == 9
    assert all(value["value"] > 0 and isinstance(value["reached"], bool) for value in found["figures"].values())
    for row in (
        "save all-new",
        "save unchanged",
        "save 95% frozen",
        "load whole",
        "load whole, new tensors",
        "load one tensor",
    ):
        assert found["samples"][row].keys() >= PEERS
        assert found["correct"][row].keys() >= PEERS
        assert row in shown
    assert found["samples"]["load whole, cold"].keys() >= PEERS
    assert found["correct"].keys() >= {"read one tensor", "save 10,000 x 1 KiB", "commit on top of many commits"}
    assert all(same for tools in found["correct"].values() for same in tools.values())
    assert found["samples"]["save 95% frozen: MB on disk"]["ckptstore"][0] < 2
    assert found["bytes"]["one tensor"] == 4 * 64 * 64 * 4
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}
    assert len({line.count("|") for line in (tmp_path / "all.md").read_text().splitlines()}) == 1


@pytest.mark.slow
def test_peak_memory_of_every_tool(tmp_path, run):
    run("local", *SMALL, "--only=peak", f"--json={tmp_path}/all.json")
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["figures"].keys() == {"peak extra memory"}
    assert found["figures"]["peak extra memory"]["reached"]
    assert found["samples"]["peak extra memory of a save, MiB"].keys() >= PEERS
    assert {path.name for path in tmp_path.iterdir()} == {"all.json"}


def test_a_tool_that_gives_back_other_bits_is_reported(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT))
    import torch

    from benchmarks.figures import LOCAL
    from benchmarks.measuring import Samples
    from benchmarks.report import Report

    samples = Samples()
    samples.check("load whole", "right", {"a": torch.zeros(2)}, {"a": torch.zeros(2)})
    assert Report(samples, [], LOCAL).correct
    samples.check("load whole", "wrong", {"a": torch.zeros(2)}, {"a": torch.ones(2)})
    samples.check("load whole", "wrong", {"a": torch.zeros(2)}, {"a": torch.zeros(2)})
    report = Report(samples, [], LOCAL)
    report.show()
    assert not report.correct
    assert "wrong (load whole)" in capsys.readouterr().out
    assert json.loads(report.as_json())["correct"]["load whole"] == {"right": True, "wrong": False}


def test_bits_are_compared(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import torch

    from benchmarks.measuring import equal

    assert equal({"a": torch.tensor([0.0, torch.nan])}, {"a": torch.tensor([0.0, torch.nan])})
    assert not equal({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])})
    assert not equal({"a": torch.tensor([0.0])}, {})
    assert not equal({}, {"a": torch.tensor([0.0])})
