"""What commands write: tables and lines for people, one JSON document for programs, progress for a terminal."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.table import Column, lines

if TYPE_CHECKING:
    from ckptstore.progress import ProgressCallback


def print_json(document: Any) -> None:
    """One JSON document. Numbers that JSON has not become the strings "NaN", "Infinity" and "-Infinity"."""
    click.echo(json.dumps(_strict(document), indent=2))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table as wide as the terminal; as wide as it needs to be when it is not for one."""
    table = lines(columns, rows, _width())
    click.secho(next(table), bold=True)
    for line in table:
        click.echo(line)


def print_fields(fields: Mapping[str, str]) -> None:
    """A table of names and values."""
    _, *rows = lines((Column(""), Column("", fold=True)), list(fields.items()), _width())
    for row in rows:
        click.echo(row)


@contextmanager
def progress_bar() -> Iterator[ProgressCallback | None]:
    """A callback that draws a bar on stderr, or None where stderr is no terminal."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


def _width() -> int | None:
    if (sys.stdout and sys.stdout.isatty()) or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return None


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
