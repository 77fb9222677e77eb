"""Samples as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Comparison, Figure
from benchmarks.measuring import Samples

COUNTED = ("MB", "MB on disk", "MB stored", "MiB", "requests", "objects", "edges")
"""How rows end that are no times."""


def add_files(parser: argparse.ArgumentParser) -> None:
    """The arguments that `Report.publish` looks at."""
    parser.add_argument("--json", type=Path, help="write all samples here")
    parser.add_argument("--markdown", type=Path, help="write the README's table here")


class Report:
    """What was measured, in which columns (tools, for most), and what is compared."""

    def __init__(
        self, samples: Samples, columns: list[str], comparison: Comparison, missing: dict[str, str] | None = None
    ) -> None:
        self._samples, self._columns, self._comparison = samples, columns, comparison
        self._missing = missing or {}

    @property
    def correct(self) -> bool:
        """Whether every tool gave back the bits it was given."""
        return not self._wrong()

    def _wrong(self) -> list[str]:
        rows = self._samples.correct.items()
        return [f"{tool} ({row})" for row, tools in rows for tool, same in tools.items() if not same]

    def publish(self, arguments: argparse.Namespace) -> None:
        """Print it and write the files asked for; ends the process with status 1 when bits are wrong."""
        self.show()
        for path, content in ((arguments.json, self.as_json()), (arguments.markdown, self.as_markdown())):
            if path:
                path.write_text(content)
        if not self.correct:
            sys.exit(1)

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
            "machine": _machine(),
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
        """The README's table: the ratio first, the limit of the machine last."""
        compared = self._comparison
        rows = [row for row in compared.rows or self._rows() if self._samples.median(row, compared.peer) is not None]
        head = ["", f"{compared.own} to {compared.peer}", *self._columns, *(["limit"] if compared.limits else [])]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *map(self._markdown_row, rows)]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def _markdown_row(self, row: str) -> list[str]:
        compared = self._comparison
        own, peer = self._samples.median(row, compared.own), self._samples.median(row, compared.peer)
        shown = [_shown(row, self._samples.median(row, column)) for column in self._columns]
        limit = compared.limits.get(row)
        beside = f"{_shown(row, self._samples.median('limit', limit))} {limit}" if limit else ""
        ratio = compared.describe(own, peer) if own and peer and not row.endswith(COUNTED) else ""
        return [row, ratio, *shown, *([beside] if compared.limits else [])]

    def _rows(self) -> list[str]:
        return [row for row in self._samples.values if row != "limit"]

    def _values(self) -> list[tuple[Figure, float]]:
        found = [(figure, figure.value(self._samples)) for figure in self._comparison.figures]
        return [(figure, value) for figure, value in found if value is not None]

    def _figures(self) -> Table:
        table = Table("figure", "measured", "to reach", "reached")
        for figure, value in self._values():
            bound = f"{'≥' if figure.more else '≤'} {figure.bound:g} {figure.unit}"
            reached = "yes" if figure.reached(value) else "NO"
            table.add_row(figure.name, f"{value:.3g} {figure.unit}", bound, reached)
        return table

    def _medians(self) -> Table:
        limits = list(self._samples.values.get("limit", {}))
        table = Table("median", *self._columns, *limits)
        table.columns[0].no_wrap = True
        for row in self._rows():
            shown = [_shown(row, self._samples.median(row, column)) for column in self._columns]
            own = self._comparison.limits.get(row)
            beside = [_shown(row, self._samples.median("limit", name)) if name == own else "" for name in limits]
            table.add_row(row, *shown, *beside)
        return table


def _machine() -> dict[str, Any]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    device = {"device": torch.cuda.get_device_name()} if torch.cuda.is_initialized() else {}
    return {**versions, "system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), **device}


def _shown(row: str, value: float | None) -> str:
    if value is None:
        return ""
    if row.endswith(("share", "GB/s")):
        return f"{value:.3f}"
    if row.endswith(COUNTED):
        return f"{value:,.1f}" if "M" in row.rpartition(": ")[2] else f"{value:,.0f}"
    if value < 1e-4:
        return f"{value * 1e6:.1f} µs"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:,.1f} ms"
