"""The command repair: shows the plan, and does it only with --yes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.environment import json_object
from ckptstore.cli.failures import FAILED
from ckptstore.cli.output import print_json, print_table, progress_bar
from ckptstore.cli.place import Place, whole_store_command
from ckptstore.cli.table import Column

if TYPE_CHECKING:
    from ckptstore.operations.mending.repair import RepairPlan, RepairReport

_LOST = (Column("STAYS DAMAGED", fold=True),)
_MOST_LOST = 20
_WHAT_HELPS = """what brings back what is lost, as verify tells then:
  a pack's file put back from a copy of the store, and repair again
  repair --source with a store that has good copies
  after repair --yes, push of the commit from another store, or a commit of the
  same content"""


@click.command()
@whole_store_command
@click.option("--source", metavar="URL", help="Another store that may have good copies, such as a backup.")
@click.option("--source-catalog", metavar="URL", help="Its catalog's database URL, when that is not in its folder.")
@click.option("--source-key-file", metavar="FILE", help="Its passphrase, when that is another.")
@click.option(
    "--source-storage-options", metavar="JSON", callback=json_object, help="What fsspec needs to reach its URL."
)
@click.option("--yes", is_flag=True, help="Do it. Without this only the plan is shown.")
@click.pass_context
def repair(
    context: click.Context,
    place: Place,
    *,
    source: str | None,
    source_catalog: str | None,
    source_key_file: str | None,
    source_storage_options: dict[str, Any] | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Mend what verify finds damaged.

    Saves what is whole in damaged packs, takes good copies from elsewhere, and lets nobody rely on the rest: the next
    commit of the same content heals it. Exits with 1 when it did that and leaves are still lost.
    """
    with ExitStack() as stack:
        store = stack.enter_context(place.open(any_run=True))
        progress = stack.enter_context(progress_bar())
        other = None
        if source is not None:
            good = place.beside(source, source_catalog, source_key_file, source_storage_options, read_only=True)
            if source_key_file is None and good.is_encrypted():
                good = replace(good, key_file=place.key_file)
            stack.enter_context(good.blaming())
            other = stack.enter_context(good.open(any_run=True))
        plan = store.plan_repair(other, progress=progress)
        report = plan.execute(progress) if yes else None
    if as_json:
        print_json(_plan_json(plan) | {"report": None if report is None else _report_json(report)})
    else:
        _print_plan(plan)
        click.echo("nothing was changed: --yes does it" if report is None else _done(report))
        if plan.lost if report is None else report.lost:
            click.echo(_WHAT_HELPS)
    if report is not None and report.lost:
        context.exit(FAILED)


def _print_plan(plan: RepairPlan) -> None:
    if plan.lost:
        more = len(plan.lost) - _MOST_LOST
        rows = [[text.clean(leaf)] for leaf in plan.lost[:_MOST_LOST]]
        print_table(_LOST, [*rows, [f"… and {more:,} more"]] if more > 0 else rows)
        click.echo()
    click.echo(f"to retire: {text.count(len(plan.packs), 'damaged pack')}")
    manifests, tags = text.count(len(plan.documents), "manifest"), text.count(len(plan.tags), "tag")
    click.echo(f"to save: {text.count(plan.saved, 'chunk')}, {manifests}, {tags}")
    click.echo(f"lost: {text.count(len(plan.lost), 'leaf', 'leaves')}")


def _done(report: RepairReport) -> str:
    manifests, tags = text.count(report.documents, "manifest"), text.count(report.tags, "tag")
    saved = f"saved {text.count(report.chunks, 'chunk')}, {manifests} and {tags}"
    return f"retired {text.count(report.packs, 'pack')}, {saved}; lost {text.count(len(report.lost), 'leaf', 'leaves')}"


def _plan_json(plan: RepairPlan) -> dict[str, Any]:
    documents = {"manifests": list(plan.documents), "tags": list(plan.tags)}
    return {"packs": list(plan.packs), "chunks": plan.saved, **documents, "lost": list(plan.lost)}


def _report_json(report: RepairReport) -> dict[str, Any]:
    counts = {"packs": report.packs, "chunks": report.chunks, "manifests": report.documents, "tags": report.tags}
    return {**counts, "lost": list(report.lost)}
