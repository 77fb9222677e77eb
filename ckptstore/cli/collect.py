"""The command gc: shows the plan, and does it only with --yes."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_json, print_table, progress_bar
from ckptstore.cli.place import Place, store_command
from ckptstore.cli.table import Column

if TYPE_CHECKING:
    from ckptstore.catalog.records import CommitRecord
    from ckptstore.operations.collecting.gc import GcPlan, GcReport
    from ckptstore.operations.collecting.retention import KeepBest, Policy

_BEST = "METRIC[:max][:N]"
_PLAN = (Column("STEP", right=True), Column("PLAN"), Column("WHY", fold=True), Column("NEW", right=True))


@click.command()
@store_command
@click.option("--keep-last", type=int, metavar="N", help="Keep the N highest steps.")
@click.option("--keep-every", type=int, metavar="N", help="Keep the steps that N divides.")
@click.option(
    "--keep-every-seconds",
    type=float,
    metavar="SECONDS",
    help="Keep the first commit, and each that was made so long after the last one kept.",
)
@click.option(
    "--keep-best",
    multiple=True,
    metavar=_BEST,
    help="Keep the N (1) commits with the lowest (highest) METRIC in their metadata. May be repeated.",
)
@click.option("--grace", type=float, metavar="SECONDS", help="How long a deleted step can be restored.  [default: 900]")
@click.option("--sweep", is_flag=True, help="Also remove from storage what the catalog does not know, after a day.")
@click.option(
    "--most",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="The largest share of the run's commits that --yes deletes.  [default: 0.9]",
)
@click.option("--yes", is_flag=True, help="Do it. Without this only the plan is shown.")
def gc(
    place: Place,
    *,
    keep_last: int | None,
    keep_every: int | None,
    keep_every_seconds: float | None,
    keep_best: tuple[str, ...],
    grace: float | None,
    sweep: bool,
    most: float | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop old commits and free their space.

    Deletes the commits of the run that no --keep option keeps; tagged ones stay. Without a --keep option none is
    deleted. Then frees what no commit of any run needs: what is deleted now, by a gc after the grace is over. Packs of
    which commits need less than half are rewritten.
    """
    from ckptstore.operations.collecting.gc import check_share
    from ckptstore.operations.collecting.terms import DEFAULT_GRACE, DEFAULT_MOST

    policy = _policy(keep_last, keep_every, keep_every_seconds, keep_best)
    with place.open(any_run=policy is None) as store, progress_bar() as progress:
        commits = store.log() if policy is not None else []
        _check_metrics(keep_best, commits)
        seconds = DEFAULT_GRACE if grace is None else grace
        plan = store.plan_gc(policy, grace=seconds, sweep=sweep, progress=progress)
        if yes:
            check_share(plan, DEFAULT_MOST if most is None else most)
        report = plan.execute(progress) if yes else None
    if as_json:
        print_json(_plan_json(plan, commits) | {"report": None if report is None else _report_json(report)})
    else:
        _print_plan(plan, commits)
        click.echo("nothing was changed: --yes does it" if report is None else _done(report))


def _policy(last: int | None, every: int | None, seconds: float | None, best: tuple[str, ...]) -> Policy | None:
    from ckptstore.operations.collecting.retention import KeepEvery, KeepEverySeconds, KeepLast

    policies: list[Policy] = [_keep_best(wish) for wish in best]
    if last is not None:
        policies.append(KeepLast(last))
    if every is not None:
        policies.append(KeepEvery(every))
    if seconds is not None:
        policies.append(KeepEverySeconds(seconds))
    return reduce(or_, policies) if policies else None


def _keep_best(wish: str) -> KeepBest:
    from ckptstore.operations.collecting.retention import KeepBest

    rest, _, last = wish.rpartition(":")
    wish, count = (rest, int(last)) if rest and last.isdecimal() and len(last) <= text.MOST_DIGITS else (wish, 1)
    metric = wish.removesuffix(":max").removesuffix(":min")
    return KeepBest(metric, count, "max" if wish.endswith(":max") else "min")


def _check_metrics(best: tuple[str, ...], commits: list[CommitRecord]) -> None:
    """A misspelt metric would keep nothing."""
    from ckptstore.errors import InvalidArgument

    for wish in best:
        if doubt := _keep_best(wish).doubt(commits):
            raise InvalidArgument(f"--keep-best {wish}: {doubt}; give {_BEST}")


def _print_plan(plan: GcPlan, commits: list[CommitRecord]) -> None:
    deleted = {commit.id: ["delete", "nothing keeps it"] for commit in plan.delete}
    verdicts = deleted | {name: ["keep", text.clean(why)] for name, why in plan.keep.items()}
    rows = [
        [str(commit.step), *verdicts[commit.id], text.size(commit.new_bytes)]
        for commit in commits
        if commit.id in verdicts
    ]
    if rows:
        print_table(_PLAN, rows)
        click.echo()
    packs, documents = len(plan.condemned.packs), len(plan.condemned.documents)
    objects = f"{text.count(packs, 'pack')} and {text.count(documents, 'manifest')}"
    click.echo(f"to delete: {text.count(len(plan.delete), 'commit')}, restorable for {text.age(plan.grace)}")
    click.echo(f"to free: {objects} of earlier deletions and failed commits, {text.size(plan.freed_bytes)}")
    if plan.rewrite:
        click.echo(f"to rewrite: {text.count(len(plan.rewrite), 'pack')}, mostly waste")
    swept = len(plan.orphans.packs) + len(plan.orphans.documents)
    if swept:
        click.echo(f"to sweep: {text.count(swept, 'object')} that the catalog does not need")


def _done(report: GcReport) -> str:
    gone = f"freed {text.count(report.packs, 'pack')} and {text.count(report.purged, 'manifest')}"
    return f"deleted {text.count(len(report.deleted), 'commit')}, {gone}: {text.size(report.freed_bytes)}"


def _plan_json(plan: GcPlan, commits: list[CommitRecord]) -> dict[str, Any]:
    return {
        "run": plan.run,
        "grace_seconds": plan.grace,
        "delete": [commit.step for commit in plan.delete],
        "keep": [{"step": commit.step, "why": plan.keep[commit.id]} for commit in commits if commit.id in plan.keep],
        "free": {
            "packs": len(plan.condemned.packs),
            "manifests": len(plan.condemned.documents),
            "bytes": plan.freed_bytes,
        },
        "rewrite": list(plan.rewrite),
        "sweep": [*plan.orphans.documents, *plan.orphans.packs],
    }


def _report_json(report: GcReport) -> dict[str, Any]:
    return {
        "deleted": list(report.deleted),
        "packs": report.packs,
        "manifests": report.purged,
        "bytes": report.freed_bytes,
        "rewritten_packs": report.rewritten,
        "written_bytes": report.written_bytes,
        "fenced_writers": report.fenced,
    }
