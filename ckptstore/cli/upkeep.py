"""Commands about a whole store: init, stats, verify, rebuild, migrate, rekey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.environment import CATALOG
from ckptstore.cli.failures import FAILED
from ckptstore.cli.history import print_runs
from ckptstore.cli.output import print_fields, print_json, print_table, progress_bar
from ckptstore.cli.place import Place, whole_reading_command, whole_store_command
from ckptstore.cli.table import Column

if TYPE_CHECKING:
    from ckptstore.catalog.records import CatalogStats, RunRecord
    from ckptstore.operations.problem import Problem
    from ckptstore.operations.verifying.verify import Level, VerifyReport

_PROBLEMS = (Column("OBJECT", fold=True), Column("PROBLEM", fold=True), Column("AFFECTED", fold=True))
_LEFT_OUT = (Column("LEFT OUT", fold=True), Column("WHY", fold=True))
_MOST_AFFECTED = 3

DIGESTS = ("xxh3_128", "sha256", "blake3")
CHUNK_BYTES = (4096, 1 << 30)
LEVELS = ("catalog", "sizes", "footers", "data")


@click.command()
@whole_store_command
@click.option("--digest", type=click.Choice(DIGESTS), help="What chunks are known by.  [default: xxh3_128]")
@click.option(
    "--chunk-bytes",
    type=click.IntRange(*CHUNK_BYTES),
    metavar="BYTES",
    help="Most bytes of a chunk, 4 KiB to 1 GiB.  [default: 4 MiB]",
)
@click.option("--encrypt", is_flag=True, help="Seal what is stored with the key in --key-file or the environment.")
def init(place: Place, *, digest: str | None, chunk_bytes: int | None, encrypt: bool, as_json: bool) -> None:
    """Make a store. Settings stay as they are made.

    Choose sha256 or blake3 for a store that is shared with people you do not trust.
    """
    from ckptstore.errors import CatalogNotFound, NotAStore, StoreExists
    from ckptstore.store import open_store

    settings: dict[str, Any] = {"digest": digest, "chunk_bytes": chunk_bytes, "encrypt": encrypt}
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        place.open(any_run=True).close()
    except (NotAStore, CatalogNotFound):  # an earlier one may have failed at the catalog
        with open_store(place.url, **place.reached_by, **given) as store:
            url = store.url
    else:
        raise StoreExists(f"a store lies at {place.url} already: use it, or choose another place")
    if as_json:
        print_json({"url": url})
    else:
        click.echo(
            f"made a store at {url}" + (f", with the catalog that {CATALOG} names" if place.catalog_from_env else "")
        )


@click.command()
@whole_reading_command
def stats(place: Place, *, as_json: bool) -> None:
    """Count what is stored, over all runs."""
    with place.open(any_run=True) as store:
        counts, runs = store.stats(), store.runs()
        if as_json:
            print_json(_stats_json(counts, runs))
            return
        print_fields(_stats_fields(counts))
        if runs:
            click.echo()
            print_runs(runs)


def _stats_fields(counts: CatalogStats) -> dict[str, str]:
    ratio = f"  (1 : {counts.logical_bytes / counts.stored_bytes:.1f})" if counts.stored_bytes else ""
    deleted = f"  (and {counts.deleted_commits:,} deleted)" if counts.deleted_commits else ""
    return {
        "runs": f"{counts.runs:,}",
        "commits": f"{counts.commits:,}{deleted}",
        "chunks": f"{counts.chunks:,}",
        "packs": ", ".join(f"{count:,} {state}" for state, count in counts.packs.items()) or "0",
        "logical": text.size(counts.logical_bytes),
        "stored": f"{text.size(counts.stored_bytes)}{ratio}",
    }


def _stats_json(counts: CatalogStats, runs: list[RunRecord]) -> dict[str, Any]:
    from ckptstore.cli.records import run_json

    return {
        "commits": counts.commits,
        "deleted_commits": counts.deleted_commits,
        "chunks": counts.chunks,
        "packs": dict(counts.packs),
        "logical_bytes": counts.logical_bytes,
        "stored_bytes": counts.stored_bytes,
        "runs": [run_json(run) for run in runs],
    }


@click.command()
@whole_reading_command
@click.option("--level", type=click.Choice(LEVELS), default="data", show_default=True, help="How deep to look.")
@click.option("--subset", metavar="K/N", help="Only the K-th of N parts of the packs.")
@click.option("--older-than", type=float, metavar="SECONDS", help="Only packs not verified for so long.")
@click.pass_context
def verify(
    context: click.Context,
    place: Place,
    *,
    level: Level,
    subset: str | None,
    older_than: float | None,
    as_json: bool,
) -> None:
    """Check every stored byte, of all runs.

    Also the catalog and every manifest. Levels that look less deep: catalog; sizes, of every object; footers, what
    objects say of themselves. Packs not verified for the longest time come first. Exits with 1 when something is
    damaged.
    """
    part = _subset(subset)
    with place.open(any_run=True) as store, progress_bar() as progress:
        report = store.verify(level, subset=part, older_than=older_than, progress=progress)
    if as_json:
        print_json(_verify_json(report))
    else:
        _print_report(report)
    if not report.ok:
        context.exit(FAILED)


def _subset(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    part, _, parts = given.partition("/")
    numbers = part.isdecimal() and parts.isdecimal() and max(len(part), len(parts)) <= text.MOST_DIGITS
    if not numbers or not 1 <= int(part) <= int(parts):
        raise click.BadParameter("give K/N, for the K-th of N parts, as 3/20", param_hint="--subset")
    return int(part), int(parts)


@click.command()
@whole_store_command
def rebuild(place: Place, *, as_json: bool) -> None:
    """Make a lost catalog anew from storage.

    Move a damaged or too old one away first. Deletions that can be restored are undone.
    """
    from ckptstore.administering import rebuild_catalog

    with progress_bar() as progress:
        report = rebuild_catalog(place.url, **place.reached_by, progress=progress)
    if as_json:
        left_out = [{"object": left.object, "reason": left.reason} for left in report.left_out]
        print_json({"commits": report.commits, "packs": report.packs, "left_out": left_out})
        return
    if report.left_out:
        print_table(_LEFT_OUT, [[left.object, text.clean(left.reason)] for left in report.left_out])
        click.echo()
    click.echo(f"entered {text.count(report.commits, 'commit')} and {text.count(report.packs, 'pack')}")


def _print_report(report: VerifyReport) -> None:
    if not report.ok:
        print_table(_PROBLEMS, [_problem_row(problem) for problem in report.problems])
        click.echo()
    found = text.count(len(report.problems), "problem") if report.problems else "no problem"
    seen = f"{text.count(report.commits, 'commit')}, {text.count(report.packs, 'pack')}, {text.size(report.bytes)}"
    click.echo(f"{found} in {seen}")
    if not report.ok:
        click.echo("ckptstore repair tells what can be mended")


def _problem_row(problem: Problem) -> list[str]:
    shown = ", ".join(problem.affected[:_MOST_AFFECTED])
    more = len(problem.affected) - _MOST_AFFECTED
    affected = f"{shown} and {more:,} more" if more > 0 else shown
    return [problem.object, text.clean(problem.detail), text.clean(affected)]


def _verify_json(report: VerifyReport) -> dict[str, Any]:
    problems = [
        {
            "object": problem.object,
            "detail": problem.detail,
            "digest": problem.digest.hex() or None,
            "affected": list(problem.affected),
        }
        for problem in report.problems
    ]
    counts = {"commits": report.commits, "packs": report.packs, "bytes": report.bytes}
    return {"ok": report.ok, **counts, "problems": problems}


@click.command()
@whole_store_command
def migrate(place: Place, *, as_json: bool) -> None:
    """Bring the catalog to this version's schema.

    It is migrated as a whole or not at all.
    """
    from ckptstore.administering import migrate_catalog

    before, after = migrate_catalog(place.url, catalog=place.catalog, storage_options=place.storage_options)
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        click.echo(f"the catalog has schema {after} already")
    else:
        click.echo(f"migrated the catalog from schema {before} to {after}")


@click.command()
@whole_store_command
@click.argument("new_key_file", type=click.Path(dir_okay=False))
def rekey(place: Place, *, new_key_file: str, as_json: bool) -> None:
    """Change the passphrase of an encrypted store.

    To the one in NEW_KEY_FILE; nothing is encrypted anew.
    """
    from ckptstore.administering import change_key

    change_key(place.url, new_key_file, key_file=place.key_file, storage_options=place.storage_options)
    if as_json:
        print_json({"changed": True})
    else:
        click.echo("the new passphrase opens the store, and the old one no longer does")
