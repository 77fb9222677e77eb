"""Samples as a table, as JSON, and as a picture."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Samples

OWN, PEER = "ckptstore", "DCP"
LIMITS = {"save all-new": "write+fsync", "load whole": "memcpy"}


@dataclass(frozen=True)
class Figure:
    """A figure to reach: a name, its value, the bound, and whether more or less is better."""

    name: str
    value: Callable[[Samples], float | None]
    bound: float
    unit: str = "x"
    more: bool = True

    def reached(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value >= self.bound if self.more else value <= self.bound


def _gain(row: str) -> Callable[[Samples], float | None]:
    """How many times as fast as the peer."""
    return lambda samples: _ratio(samples.median(row, PEER), samples.median(row, OWN))


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


FIGURES = (
    Figure("save all-new, DCP's throughput", _gain("save all-new"), 0.8),
    Figure("save unchanged", _gain("save unchanged"), 8),
    Figure("save 95% frozen", _gain("save 95% frozen"), 6),
    Figure("load whole", _gain("load whole"), 1),
    Figure("load one tensor", lambda s: _scaled(s.median("load one tensor", OWN), 1e3), 20, "ms", more=False),
    Figure(
        "10,000 small tensors, of DCP's time",
        lambda s: _ratio(s.median("save 10,000 x 1 KiB", OWN), s.median("save 10,000 x 1 KiB", PEER)),
        1.5,
        more=False,
    ),
    Figure(
        "a commit on top of many, of one on top of 10",
        lambda s: _ratio(s.median("commit on top of many commits", OWN), s.median("commit on top of 10 commits", OWN)),
        1.2,
        more=False,
    ),
    Figure("peak extra memory", lambda s: s.median("peak extra memory of a save, MiB", OWN), 256, "MiB", more=False),
)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


class Report:
    """What was measured, and by which tools."""

    def __init__(self, samples: Samples, tools: list[str], missing: dict[str, str]) -> None:
        self._samples, self._tools, self._missing = samples, tools, missing

    @property
    def correct(self) -> bool:
        """Whether every tool gave back the bits it was given."""
        return not self._wrong()

    def _wrong(self) -> list[str]:
        rows = self._samples.correct.items()
        return [f"{tool} ({row})" for row, tools in rows for tool, same in tools.items() if not same]

    def show(self) -> None:
        """Print the figures to reach, then every median."""
        console = Console(width=120)
        sizes = "".join(f"{name}: {size / 2**20:.1f} MiB; " for name, size in self._samples.sizes.items())
        console.print(f"{sizes}medians of interleaved runs; torch {torch.__version__}")
        console.print(self._figures())
        console.print(self._medians())
        for name, why in self._missing.items():
            console.print(f"{name} is not measured: {why}")
        for wrong in self._wrong():
            console.print(f"OTHER BITS than were saved came back from {wrong}")

    def as_json(self) -> str:
        """Figures and all samples."""
        found: dict[str, Any] = {
            "machine": {"python": platform.python_version(), "torch": torch.__version__, "system": platform.platform()},
            "bytes": self._samples.sizes,
            "correct": self._samples.correct,
            "missing": self._missing,
            "figures": {
                figure.name: {"value": value, "bound": figure.bound, "reached": figure.reached(value)}
                for figure, value in self._values()
            },
            "samples": self._samples.values,
        }
        return json.dumps(found, indent=1)

    def as_markdown(self) -> str:
        """The README's table: ratio to the peer first, the limit of the machine last."""
        rows = [row for row in self._samples.values if self._samples.median(row, PEER) is not None and row != "limit"]
        head = ["", f"{OWN} to {PEER}", *self._tools, "limit"]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *map(self._markdown_row, rows)]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def _markdown_row(self, row: str) -> list[str]:
        own, peer = self._samples.median(row, OWN), self._samples.median(row, PEER)
        timed = not row.endswith(("MB on disk", "MiB"))
        ratio = _ratio(peer, own) if timed else None
        limit = LIMITS.get(row)
        beside = self._samples.median("limit", limit) if limit else None
        shown = [_shown(row, self._samples.median(row, tool)) for tool in self._tools]
        return [
            row,
            f"**{ratio:.1f}x** as fast" if ratio else "",
            *shown,
            f"{_shown(row, beside)} {limit or ''}".strip(),
        ]

    def draw(self, path: Path) -> None:
        """The times of all tools, relative to the peer's."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        rows = [row for row in self._samples.values if row.startswith(("save", "load")) and ":" not in row]
        figure, axes = plt.subplots(figsize=(9, 0.9 * len(rows) + 1))
        height = 0.8 / len(self._tools)
        for place, tool in enumerate(self._tools):
            ratios = [_ratio(self._samples.median(row, tool), self._samples.median(row, PEER)) or 0 for row in rows]
            axes.barh([at + place * height for at in range(len(rows))], ratios, height, label=tool)
        axes.set_yticks([at + 0.4 - height / 2 for at in range(len(rows))], rows)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlabel("time relative to DCP's (less is better)")
        axes.legend()
        figure.tight_layout()
        figure.savefig(path, dpi=120)

    def _values(self) -> list[tuple[Figure, float]]:
        found = [(figure, figure.value(self._samples)) for figure in FIGURES]
        return [(figure, value) for figure, value in found if value is not None]

    def _figures(self) -> Table:
        table = Table("figure", "measured", "to reach", "reached")
        for figure, value in self._values():
            bound = f"{'≥' if figure.more else '≤'} {figure.bound:g} {figure.unit}"
            reached = "yes" if figure.reached(value) else "NO"
            table.add_row(figure.name, f"{value:.2f} {figure.unit}", bound, reached)
        return table

    def _medians(self) -> Table:
        limits = list(self._samples.values.get("limit", {}))
        table = Table("median", *self._tools, *limits)
        table.columns[0].no_wrap = True
        for row in self._samples.values:
            if row == "limit":
                continue
            shown = [_shown(row, self._samples.median(row, tool)) for tool in self._tools]
            beside = [
                _shown(row, self._samples.median("limit", name)) if name == LIMITS.get(row) else "" for name in limits
            ]
            table.add_row(row, *shown, *beside)
        return table


def _shown(row: str, value: float | None) -> str:
    if value is None:
        return ""
    if row.endswith(("MB on disk", "MiB")):
        return f"{value:,.1f}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:,.1f} ms"
