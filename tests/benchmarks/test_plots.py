import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLOTS = {"sizes", "speeds", "saves", "levels", "stalls"}


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draws reports; gives the words of each plot."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import plots

    def draw(*reports):
        plots.draw(plots.read(list(reports)), tmp_path)
        return words(tmp_path)

    return draw


def words(folder):
    return {path.stem: re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()) for path in folder.glob("*.svg")}


def test_the_plots_of_the_docs_are_what_the_results_give(draw):
    drawn = draw(*(ROOT / "benchmarks" / "results").glob("*.json"))
    assert drawn.keys() == PLOTS
    assert drawn == words(ROOT / "docs" / "plots")
    page = (ROOT / "docs" / "performance.md").read_text()
    assert {name for name in PLOTS if f"](plots/{name}.svg)" in page} == PLOTS


def test_a_report_draws_what_it_has_and_tells_every_tool(draw, tmp_path):
    rows = {
        "save all-new": {"ckptstore": [1.0, 2.0, 9.0], "DCP": [4.0], "new tool": [8.0]},
        "save all-new: MB on disk": {"ckptstore": [5.0]},
        "load whole": {"ckptstore": [1.0], "DCP": [2.0]},
        "limit": {"memcpy": [0.5]},
    }
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"samples": rows}))
    found = draw(report)
    assert found.keys() == {"saves"}
    assert {"save all-new", "load whole", "ckptstore", "DCP", "new tool"} <= set(found["saves"])
    assert not {"limit", "memcpy", "save all-new: MB on disk"} & set(found["saves"])


def test_equal_samples_give_equal_files(draw, tmp_path):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"samples": {"all-new": {"ckptstore": [1.0], "DCP": [2.0]}}}))
    draw(report)
    first = (tmp_path / "stalls.svg").read_bytes()
    draw(report)
    assert (tmp_path / "stalls.svg").read_bytes() == first
