import json

import pytest

TOOLS = {"ckptstore", "ckptstore, at once", "DCP", "DCP, in a thread"}


@pytest.mark.slow
def test_a_small_run_measures_every_row_in_one_process(tmp_path, run):
    given = ["--mib=8", "--runs=2", "--steps=11", "--only=blocked", "--only=lost"]
    run("stalls", *given, f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md")
    found = json.loads((tmp_path / "all.json").read_text())
    for row in ("first call", "all-new", "95% frozen", "lost to a save", "lost, by whole loops"):
        assert found["samples"][row].keys() == TOOLS
        assert all(len(values) == 2 for values in found["samples"][row].values())
    assert found["correct"] == {"all-new": dict.fromkeys(TOOLS, True)}
    assert len(found["figures"]) == 6
    assert "ckptstore to DCP" in (tmp_path / "all.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}


@pytest.mark.slow
def test_processes_are_asked_for_their_first_call(tmp_path, run):
    run("stalls", "--mib=8", "--runs=1", "--only=first", f"--json={tmp_path}/first.json")
    found = json.loads((tmp_path / "first.json").read_text())
    assert found["samples"].keys() == {"first call of a process"}
    assert all(0 < samples[0] < 60 for samples in found["samples"]["first call of a process"].values())
    assert found["samples"]["first call of a process"].keys() == TOOLS
