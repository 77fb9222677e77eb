"""Commands about commits and runs: log, show, steps, runs, tag, rm, restore."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_fields, print_json, print_table
from ckptstore.cli.place import STEP, Place, reading_command, store_command, whole_reading_command
from ckptstore.cli.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.catalog.records import CommitRecord, RunRecord
    from ckptstore.store import Store

_LOG = (
    Column("STEP", right=True),
    Column("TAGS", fold=True),
    Column("AGE", right=True),
    Column("LEAVES", right=True),
    Column("LOGICAL", right=True),
    Column("NEW", right=True),
    Column("METADATA", crop=True),
)
_RUNS = (
    Column("RUN", fold=True),
    Column("COMMITS", right=True),
    Column("LATEST", right=True),
    Column("FORKED FROM", fold=True),
)


@click.command()
@reading_command
@click.option("-n", "count", type=click.IntRange(min=1), help="Only the newest COUNT commits.", metavar="COUNT")
@click.option("--deleted", is_flag=True, help="Also those that can still be restored.")
def log(place: Place, *, count: int | None, deleted: bool, as_json: bool) -> None:
    """List the commits of a run, newest step first.

    LOGICAL is the size of the state, NEW what the commit added to the store.
    """
    from ckptstore.cli.records import commit_json

    with place.open() as store:
        commits = store.log(deleted=deleted)[:count]
        if as_json:
            print_json([commit_json(commit) for commit in commits])
        elif commits:
            now = time.time()
            print_table(_LOG, [_log_row(commit, now) for commit in commits])
        else:
            click.echo(f"run {store.run!r} has no commit", err=True)


def _log_row(commit: CommitRecord, now: float) -> list[str]:
    tags = [*commit.tags, *(["(deleted)"] if commit.deleted is not None else [])]
    return [
        str(commit.step),
        " ".join(tags),
        text.age(now - commit.created),
        f"{commit.leaves:,}",
        text.size(commit.logical_bytes),
        text.size(commit.new_bytes),
        text.metadata(commit.metadata),
    ]


@click.command(epilog=STEP)
@reading_command
@click.argument("step", default="latest")
def show(place: Place, *, step: str, as_json: bool) -> None:
    """Show a commit, or the latest: sizes, metadata, dtypes."""
    from ckptstore.cli.records import commit_json, summary

    with place.open(step) as store:
        view = store.manifest(step)
        commit, dtypes = view.commit, summary(view.manifest)
        if as_json:
            print_json(commit_json(commit) | {"document": commit.document, "dtypes": dtypes})
            return
        print_fields(_commit_fields(commit))
        click.echo()
        rows = [[name, f"{group['leaves']:,}", text.size(group["bytes"])] for name, group in dtypes.items()]
        print_table((Column("DTYPE", fold=True), Column("LEAVES", right=True), Column("SIZE", right=True)), rows)


def _commit_fields(commit: CommitRecord) -> dict[str, str]:
    fields = {
        "commit": commit.address,
        "id": commit.id,
        "parent": commit.parent_ref or "none",
        "tags": " ".join(commit.tags) or "none",
        "created": text.local(commit.created),
        "leaves": f"{commit.leaves:,}",
        "logical": text.size(commit.logical_bytes),
        "new": text.size(commit.new_bytes),
    }
    return fields | {f"  {text.clean(key)}": text.metadata_value(value) for key, value in commit.metadata.items()}


@click.command()
@reading_command
def steps(place: Place, *, as_json: bool) -> None:
    """List the steps of a run, one per line."""
    with place.open() as store:
        found = store.steps()
    if as_json:
        print_json(found)
    else:
        for step in found:
            click.echo(step)


@click.command()
@whole_reading_command
def runs(place: Place, *, as_json: bool) -> None:
    """List the runs, how many commits they have, and their origin."""
    from ckptstore.cli.records import run_json

    with place.open(any_run=True) as store:
        found = store.runs()
    if as_json:
        print_json([run_json(run) for run in found])
    elif found:
        print_runs(found)
    else:
        click.echo("the store has no run", err=True)


def print_runs(found: Sequence[RunRecord]) -> None:
    """A table of runs."""
    print_table(_RUNS, [[run.name, f"{run.commits:,}", _latest(run), run.forked_from or ""] for run in found])


def _latest(run: RunRecord) -> str:
    return "" if run.latest is None else str(run.latest)


@click.command(epilog=STEP)
@store_command
@click.argument("name", required=False)
@click.argument("step", required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the tag NAME.")
def tag(place: Place, *, name: str | None, step: str | None, delete: bool, as_json: bool) -> None:
    """Name a commit; without NAME, list the tags of the run.

    A tag moves when it is given to another step. Tagged commits can not be deleted, and gc keeps them.
    """
    if delete != (name is not None and step is None):
        raise click.UsageError("give NAME and STEP to tag, -d and NAME to remove a tag, or neither to list them")
    run = (step or "").rpartition("@")[0] or place.run
    with replace(place, run=run).open() as store:
        if name is not None and step is not None:
            store.tag(name, step)
        elif name is not None:
            store.untag(name)
        _print_tags(store, changed=name, as_json=as_json)


def _print_tags(store: Store, *, changed: str | None, as_json: bool) -> None:
    tags = store.tags()
    if as_json:
        print_json({"run": store.run, "tags": tags})
    elif changed is not None:
        click.echo(f"tag {changed} is now {store.run}@{tags[changed]}" if changed in tags else f"removed tag {changed}")
    elif tags:
        print_table((Column("TAG", fold=True), Column("STEP", right=True)), [[k, str(v)] for k, v in tags.items()])
    else:
        click.echo(f"run {store.run!r} has no tag", err=True)


@click.command(epilog=STEP)
@store_command
@click.argument("step", nargs=-1, required=True)
def rm(place: Place, *, step: tuple[str, ...], as_json: bool) -> None:
    """Delete commits. They can be restored until a gc finds them deleted for longer than its grace."""
    from ckptstore.operations.collecting.terms import DEFAULT_GRACE

    with place.open(*step) as store:
        found = {commit.id: commit for commit in map(store.find, step)}
        store.delete(*found.values())
    until = time.time() + DEFAULT_GRACE
    if as_json:
        deleted = [{"run": commit.run, "step": commit.step, "id": commit.id} for commit in found.values()]
        print_json({"deleted": deleted, "restorable_until": text.iso(until)})
        return
    for commit in found.values():
        click.echo(f"deleted {commit.address}")
    click.echo(f"restore takes them back; with gc's default grace until {text.local(until)}")


@click.command()
@store_command
@click.argument("step")
def restore(place: Place, *, step: str, as_json: bool) -> None:
    """Take back the deletion of a commit.

    STEP is a number here; run@STEP is one of another run.
    """
    from ckptstore.cli.records import commit_json

    run, at, digits = step.rpartition("@")
    if bool(at) != bool(run) or not digits.isdecimal() or len(digits) > text.MOST_DIGITS:
        raise click.BadParameter("give the step's number, or run@ and that", param_hint="STEP")
    with replace(place, run=run or place.run).open() as store:
        commit = store.restore(int(digits))
        if as_json:
            print_json(commit_json(commit))
        else:
            click.echo(f"restored {commit.address}")
