import json

import pytest


@pytest.mark.slow
def test_a_small_run_measures_every_row(tmp_path, run):
    run("stalls", "--mib=8", "--runs=2", "--steps=11", f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md")
    found = json.loads((tmp_path / "all.json").read_text())
    tools = {"ckptstore", "ckptstore, at once", "DCP", "DCP, in a thread"}
    for row in ("first call", "all-new", "95% frozen", "lost to a save", "lost, by whole loops"):
        assert found["samples"][row].keys() == tools
        assert all(len(values) == 2 for values in found["samples"][row].values())
    assert found["correct"] == {"all-new": dict.fromkeys(tools, True)}
    assert len(found["figures"]) == 6
    assert "ckptstore to DCP" in (tmp_path / "all.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}
