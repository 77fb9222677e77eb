import json

import pytest


@pytest.mark.slow
def test_a_small_run_measures_every_row(tmp_path, run):
    files = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    run("distributed", "--mib=24", "--runs=2", "--ranks", "2", "--simulated=16", "--chunks=160", "--leaves=40", *files)
    found = json.loads((tmp_path / "all.json").read_text())
    samples, tools = found["samples"], {"ckptstore", "DCP"}
    for row in ("save all-new", "save unchanged", "load whole"):
        assert samples[f"2 ranks, {row}"].keys() == tools
        assert all(len(values) == 2 for values in samples[f"2 ranks, {row}"].values())
    assert 1 <= samples["2 ranks, load whole: read, share"]["ckptstore"][0] < 4
    same = dict.fromkeys(tools, True)
    assert found["correct"] == {
        "2 ranks, load whole": same,
        "2 ranks, save unchanged": same,
        "16 ranks, publish": {"ckptstore": True},
        "16 ranks, merge": {"ckptstore": True},
    }
    for step in ("open", "grant", "publish", "merge"):
        assert samples[f"16 ranks, {step}"]["ckptstore"][0] > 0
    assert samples["16 ranks, all they send: MB"]["ckptstore"][0] < 10
    assert found["figures"].keys() == {"save all-new", "save unchanged", "load whole"}
    assert "ckptstore to DCP" in (tmp_path / "all.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}
