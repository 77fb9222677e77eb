import json

import pytest


@pytest.mark.slow
def test_a_small_run_measures_every_level(tmp_path, run):
    files = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    run("levels", "--mib=24", "--commits=2", "--apart=1", "--runs=1", *files)
    found = json.loads((tmp_path / "all.json").read_text())
    columns = dict.fromkeys(["none", "fast", "auto", "best", "best, alone"], True)
    rows = [f"checkout {which}{how}" for which in ("1", "a later one") for how in ("", ", cold")]
    assert found["correct"] == dict.fromkeys(rows, columns)
    stored = found["samples"]["commit a later one: MB on disk"]
    assert max(stored["best"]) < min(stored["fast"]) < 0.95 * min(stored["none"])
    assert {len(values) for values in stored.values()} == {1}
    assert max(stored["best"]) < min(stored["best, alone"])
    assert len(found["figures"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}
