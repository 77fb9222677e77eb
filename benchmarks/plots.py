"""Plots of what benchmarks found.

    python -m benchmarks.plots FOLDER REPORT...

Reads what `--json` of benchmarks.codecs, local, levels and stalls wrote, and draws to FOLDER the plots whose rows are
there, as SVG.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.codecs import DTYPES
from benchmarks.figures import OWN, PEER
from benchmarks.measuring import Samples

COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Told apart by those who see no red or green as well (Okabe and Ito, 2008)."""


def main() -> None:
    """Read, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the plots go")
    parser.add_argument("reports", type=Path, nargs="+", help="what benchmarks wrote with --json")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw(read(arguments.reports), arguments.folder)


def read(reports: list[Path]) -> Samples:
    """All samples of some reports."""
    samples = Samples()
    for report in reports:
        samples.values |= json.loads(report.read_text())["samples"]
    return samples


def draw(samples: Samples, folder: Path) -> None:
    """Every plot whose rows were measured; equal samples give equal files."""
    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": OWN, "font.size": 9, "axes.grid": True})
    mpl.rcParams.update({"grid.color": "#dddddd", "axes.axisbelow": True})
    for name, plot in PLOTS.items():
        if plot.needs in samples.values:
            figure = plot.draw(samples)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")


def _subplots(*shape: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib import pyplot as plt

    return plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False)


def _columns(samples: Samples, row: str) -> list[str]:
    return [column for column in samples.values[row] if not column.startswith("best peer")]


def _sizes(samples: Samples) -> Any:
    """What a whole state takes beside an older one, by the steps between them."""
    figure, axes = _subplots(2, 2, size=(9, 6))
    for across, dtype in zip(axes, DTYPES, strict=True):
        for axis, phase in zip(across, ("peak", "decayed"), strict=True):
            rows = _apart(samples, f"{dtype} whole, ", f" apart, {phase}: share")
            for color, column in zip(COLORS, _columns(samples, next(iter(rows.values()))), strict=False):
                shares = [samples.median(row, column) for row in rows.values()]
                axis.plot(list(rows), shares, "o--" if "auto" in column else "o-", color=color, label=column)
            axis.set_xscale("log")
            axis.set_xticks(list(rows), list(map(str, rows)))
            axis.minorticks_off()
            axis.set_ylim(0, 1)
            axis.set_title(f"{dtype} weights and Adam moments, learning rate {phase}")
            axis.set(xlabel="steps since the older state", ylabel="bytes, of raw")
    _legend(figure, axes[0][0])
    return figure


def _apart(samples: Samples, before: str, after: str) -> dict[int, str]:
    """Rows by the steps in their names."""
    rows = [row for row in samples.values if row.startswith(before) and row.endswith(after)]
    return {int(row.removeprefix(before).removesuffix(after)): row for row in rows}


def _speeds(samples: Samples) -> Any:
    """How fast weights are coded without an older state, by what they take."""
    figure, axes = _subplots(1, 2, size=(9, 3.8))
    for axis, act in zip(axes[0], ("encode", "decode"), strict=True):
        for dtype, marker in zip(DTYPES, ("o", "s"), strict=True):
            row = f"{act} {dtype} weights, alone: GB/s"
            for color, column in zip(COLORS, _columns(samples, row), strict=False):
                size = samples.median(f"{dtype} weights, alone, peak: share", column)
                label = column if dtype == "fp32" else None
                axis.scatter(size, samples.median(row, column), 60, color, marker=marker, label=label)
        axis.set_title(f"{act}: fp32 weights ●, bf16 weights ■")
        axis.set(xlabel="bytes, of raw", ylabel="GB/s of raw bytes, one thread", ylim=(0, None))
    _legend(figure, axes[0][0])
    return figure


def _saves(samples: Samples) -> Any:
    """Times of all tools, relative to the peer's."""
    rows = [row for row in samples.values if row.startswith(("save", "load")) and ":" not in row]
    relative = Samples()
    for row in rows:
        peer = samples.median(row, PEER)
        relative.values[row] = {
            column: [value / peer for value in values] for column, values in samples.values[row].items() if peer
        }
    figure, axes = _subplots(1, 1, size=(9, 0.85 * len(rows) + 1))
    _bars(axes[0][0], relative, rows)
    axes[0][0].axvline(1, color="black", linewidth=0.8)
    axes[0][0].set(xscale="log", xlabel=f"time to that of {PEER} (less is better)")
    _legend(figure, axes[0][0])
    return figure


def _levels(samples: Samples) -> Any:
    """Bytes and times of later commits, by level."""
    rows = ["commit a later one", "checkout a later one, cold", "checkout a later one"]
    figure, axes = _subplots(1, 2, size=(9, 3.2))
    _bars(axes[0][0], samples, ["commit a later one: MB on disk"])
    axes[0][0].set(xlabel="MB on disk", yticks=[], title="a commit ten steps later")
    _bars(axes[0][1], samples, rows)
    axes[0][1].set(xlabel="seconds")
    _legend(figure, axes[0][1])
    return figure


def _stalls(samples: Samples) -> Any:
    """How long training waits for a call, and what it loses in all."""
    figure, axes = _subplots(1, 2, size=(9, 3.2))
    _bars(axes[0][0], samples, [row for row in ("all-new", "95% frozen", "first call") if row in samples.values])
    axes[0][0].set(xlabel="seconds", title="blocked by a call")
    _bars(axes[0][1], samples, [row for row in samples.values if row == "lost to a save"])
    axes[0][1].set(xlabel="seconds", title="lost to a save, of a loop of training")
    _legend(figure, axes[0][0])
    return figure


def _bars(axis: Any, samples: Samples, rows: list[str]) -> None:
    """Medians, and each run as a dot."""
    columns = list(dict.fromkeys(column for row in rows for column in _columns(samples, row)))
    height = 0.8 / max(len(columns), 1)
    for place, (color, column) in enumerate(zip(COLORS, columns, strict=False)):
        middles = {at + place * height: row for at, row in enumerate(rows) if samples.median(row, column) is not None}
        medians = [samples.median(row, column) for row in middles.values()]
        axis.barh(list(middles), medians, height, color=color, label=column, alpha=0.8)
        for at, row in middles.items():
            values = samples.values[row][column]
            axis.plot(values, [at] * len(values), ".", color="black", markersize=3)
    axis.set_yticks([at + 0.4 - height / 2 for at in range(len(rows))], rows)
    axis.invert_yaxis()


def _legend(figure: Any, axis: Any) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4)


@dataclass(frozen=True)
class Plot:
    """How to draw one, and a row that it needs."""

    needs: str
    draw: Callable[[Samples], Any]


PLOTS = {
    "sizes": Plot("fp32 whole, 10 apart, peak: share", _sizes),
    "speeds": Plot("encode fp32 weights, alone: GB/s", _speeds),
    "saves": Plot("save all-new", _saves),
    "levels": Plot("commit a later one", _levels),
    "stalls": Plot("all-new", _stalls),
}


if __name__ == "__main__":
    main()
