"""Commands about what is in commits: ls, diff."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_json, print_table, progress_bar
from ckptstore.cli.place import STEP, Place, reading_command
from ckptstore.cli.table import Column, cropped

if TYPE_CHECKING:
    from ckptstore.format.manifest import Entry
    from ckptstore.operations.diff import Change, Diff
    from ckptstore.operations.structure import Restructured, Retied
    from ckptstore.operations.view import ManifestView

_PREVIEW = 60
_MARKS = {"added": "A", "removed": "R", "moved": "M", "changed": "C"}
_ROOT = "(the state)"
_OTHERS = 3
"""As many of the leaves that one is tied to are named."""

_LS = (
    Column("PATH", fold=True),
    Column("DTYPE", crop=True),
    Column("SHAPE", fold=True),
    Column("SIZE", right=True),
    Column("VALUE", crop=True),
)
_DIFF = (Column(""), Column("PATH", fold=True), Column("CHANGED", right=True), Column("HOW", fold=True))
_NUMBERS = (
    Column("MAX ABS", right=True),
    Column("MEAN ABS", right=True),
    Column("REL L2", right=True),
    Column("COSINE", right=True),
)


@click.command(epilog=STEP)
@reading_command
@click.argument("step")
@click.argument("glob", nargs=-1)
def ls(place: Place, *, step: str, glob: tuple[str, ...], as_json: bool) -> None:
    """List the leaves of a commit.

    A GLOB selects logical paths: * stays within a segment, ** crosses them, a container's path selects all beneath.
    """
    from ckptstore.cli.records import entry_json
    from ckptstore.operations.paths import chosen, require_matches

    with place.open(step) as store:
        view = store.manifest(step)
    require_matches([*view.manifest.entries, *view.manifest.containers], glob or None, view.name)
    leaves = chosen(view.manifest.entries, glob or None)
    if as_json:
        tied = view.manifest.tied
        print_json([{"path": path, **entry_json(entry), "tied_to": tied.get(path)} for path, entry in leaves.items()])
    else:
        print_table(_LS, _ls_rows(view, leaves))


def _ls_rows(view: ManifestView, leaves: dict[str, Entry]) -> list[list[str]]:
    from ckptstore.cli.records import dtype, preview, shape
    from ckptstore.format.manifest import entry_bytes

    notes = {path: f"tied to {text.clean(first)}" for path, first in view.manifest.tied.items()}
    return [
        [
            text.clean(path),
            dtype(entry),
            shape(entry),
            text.size(entry_bytes(entry)),
            cropped(notes.get(path) or preview(entry), _PREVIEW),
        ]
        for path, entry in leaves.items()
    ]


@click.command(epilog=STEP)
@reading_command
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--values", is_flag=True, help="Also read changed tensors and tell how far their numbers moved.")
@click.option("--summary", is_flag=True, help="Only the totals.")
def diff(place: Place, *, old: str, new: str, values: bool, summary: bool, as_json: bool) -> None:
    """Tell what changed from the step OLD to the step NEW.

    The marks are A added, R removed, M moved, C changed, S a container that is another, T a leaf that is tied to
    another. CHANGED counts the bytes of the chunks that differ.
    """
    with place.open(old, new) as store, progress_bar() as progress:
        found = store.diff(old, new, values=values, progress=progress)
    if as_json:
        print_json(_diff_json(found, summary=summary))
        return
    rows = [*map(_diff_row, found.changes), *map(_container_row, found.restructured), *map(_tie_row, found.retied)]
    if rows and not summary:
        numbered = any(change.numbers for change in found.changes)
        columns = _DIFF + _NUMBERS if numbered else _DIFF
        print_table(columns, [row[: len(columns)] for row in rows])
        click.echo()
    counts = ", ".join(f"{len(found.of(kind)):,} {kind}" for kind in _MARKS)
    click.echo(f"{counts}, {found.unchanged:,} unchanged")
    if found.restructured or found.retied:
        differing = text.count(len(found.restructured), "container"), text.count(len(found.retied), "leaf", "leaves")
        click.echo(f"{differing[0]} built and {differing[1]} tied otherwise")
    click.echo(f"{text.size(found.changed_bytes)} of {text.size(found.new_bytes)} changed")


def _diff_row(change: Change) -> list[str]:
    numbers = change.numbers
    differences = [numbers.max_abs, numbers.mean_abs, numbers.relative_l2] if numbers else []
    figures = [f"{number:.2e}" for number in differences] + ([f"{numbers.cosine:.6f}"] if numbers else [])
    return [_MARKS[change.kind], text.clean(change.path), _changed(change), _how(change), *(figures or [""] * 4)]


def _container_row(change: Restructured) -> list[str]:
    from ckptstore.cli.records import nature

    pairs = (change.old, change.new), (change.new, change.old)
    before, after = (cropped(nature(one, other), _PREVIEW) if one else "no container" for one, other in pairs)
    alike = "its keys in another order" if change.reordered else "and another further on"
    how = f"{before} → {after}" if before != after else f"{before}, {alike}"
    return ["S", text.clean(change.path) or _ROOT, "", how, *[""] * 4]


def _tie_row(change: Retied) -> list[str]:
    before, after = (_tied_to(change.path, group) for group in (change.old, change.new))
    return ["T", text.clean(change.path), "", f"{before} → {after}", *[""] * 4]


def _tied_to(path: str, group: Sequence[str]) -> str:
    others = list(islice((text.clean(other) for other in group if other != path), _OTHERS + 1))
    return f"tied to {', '.join(others[:_OTHERS])}{', …' * (len(others) > _OTHERS)}" if others else "apart"


def _changed(change: Change) -> str:
    from ckptstore.format.manifest import entry_bytes

    whole = entry_bytes(change.new) if change.kind == "changed" and change.new is not None else change.changed_bytes
    of = f" of {text.size(whole)}" if whole != change.changed_bytes else ""
    return f"{text.size(change.changed_bytes)}{of}" if change.kind != "moved" else ""


def _how(change: Change) -> str:
    if change.kind == "moved":
        return f"from {text.clean(change.moved_from)}"
    if change.old is None or change.new is None:
        return _form(change.new or change.old)
    before, after = _form(change.old, change.new), _form(change.new, change.old)
    return before if before == after else f"{before} → {after}"


def _form(entry: Entry | None, other: Entry | None = None) -> str:
    """A leaf's value, or dtype and shape; also what else it is, and the other one is not."""
    from ckptstore.cli.records import dtype, notes, preview, shape

    if entry is None:
        return ""
    apart = [] if other is None else [note for note in notes(entry) if note not in notes(other)]
    return cropped(preview(entry), _PREVIEW) or " ".join([dtype(entry), shape(entry), *apart])


def _diff_json(found: Diff, *, summary: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "old": found.old.address,
        "new": found.new.address,
        **{kind: len(found.of(kind)) for kind in _MARKS},
        "unchanged": found.unchanged,
        "restructured": len(found.restructured),
        "retied": len(found.retied),
        "changed_bytes": found.changed_bytes,
        "old_bytes": found.old_bytes,
        "new_bytes": found.new_bytes,
    }
    if summary:
        return document
    return document | {
        "changes": [_change_json(change) for change in found.changes],
        "containers": [_container_json(change) for change in found.restructured],
        "ties": [{"path": change.path, "old": change.old, "new": change.new} for change in found.retied],
    }


def _container_json(change: Restructured) -> dict[str, Any]:
    from ckptstore.cli.records import container_json

    old, new = (None if one is None else container_json(one) for one in (change.old, change.new))
    return {"path": change.path, "old": old, "new": new}


def _change_json(change: Change) -> dict[str, Any]:
    from dataclasses import asdict

    from ckptstore.cli.records import entry_json, notes

    old, new = (None if one is None else entry_json(one) | {"notes": notes(one)} for one in (change.old, change.new))
    return {
        "path": change.path,
        "kind": change.kind,
        "moved_from": change.moved_from or None,
        "changed_bytes": change.changed_bytes,
        "repeated": change.repeated,
        "old": old,
        "new": new,
        "numbers": asdict(change.numbers) if change.numbers is not None else None,
    }
