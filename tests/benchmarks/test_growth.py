import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_small_run_measures_every_operation(tmp_path, run, database):
    files = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    run("growth", database, "--counts", "4", "30", "--leaves=40", "--runs=2", *files)
    found = json.loads((tmp_path / "all.json").read_text())
    samples = found["samples"]
    columns = {"4 commits", "30 commits"}
    rows = ["commit", "look up a path", "find", "latest", "steps", "log", "plan gc", "gc of a commit"]
    for row in [*rows, "commit, after that", "plan gc, after that", "gc of a commit, after that"]:
        assert samples[row].keys() == columns
        assert all(len(values) == 2 and min(values) > 0 for values in samples[row].values())
    for method in ("newest", "open_session", "pin", "reserve", "commit"):
        parts = samples[f"commit: {method}"]
        assert all(parts[column][0] < samples["commit"][column][0] for column in columns)
    assert all(len(values) == 1 for values in samples["gc to the last 3"].values())
    assert samples["log, per commit"]["30 commits"][0] == samples["log"]["30 commits"][0] / 31  # one came before
    assert found["figures"].keys() == {"commit", "look up a path", "find", "latest"}
    shown = (tmp_path / "all.md").read_text()
    assert "30 commits to 4 commits" in shown
    assert len({line.count("|") for line in shown.splitlines()}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}


@pytest.fixture
def growing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.growing import CHANGED, Growing

    store = Growing(f"sqlite:///{tmp_path}/catalog.sqlite", leaves=2 * CHANGED)
    store.grow(2 * CHANGED)
    return store


def test_a_commit_relies_on_as_many_packs_as_leaves_change_in_turn(growing):
    assert growing.store.steps() == list(range(1, 41))
    assert len(growing.catalog.packs(growing.store.find().id)) == 20
    assert len(growing.store.manifest()) == 40
    assert growing.look_up(7).length == 256 * 512 * 4


def test_old_commits_go_and_the_newest_stays_whole(growing):
    growing.timed.taken()
    growing.collect([growing.store.find(1), growing.store.find(2)])
    assert growing.timed.taken().keys() == {"find", "delete", "condemn", "settle"}
    assert growing.store.steps() == list(range(3, 41))
    assert growing.whole()
    lost = growing.catalog.packs(growing.store.find().id)[-1].name
    with growing._parts.catalog._catalog._database.write() as connection:
        connection.exec_driver_sql("DELETE FROM chunks WHERE pack = (SELECT key FROM packs WHERE name = ?)", (lost,))
    assert not growing.whole()
