"""The command doctor: whether a store can live at a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.failures import FAILED
from ckptstore.cli.output import print_json, print_table
from ckptstore.cli.place import Place, whole_store_command
from ckptstore.cli.table import Column

if TYPE_CHECKING:
    from ckptstore.testing.doctor import Examination, Finding

_FINDINGS = (Column("SUITE"), Column("DOES NOT HOLD", fold=True), Column("", fold=True))


@click.command()
@whole_store_command
@click.pass_context
def doctor(context: click.Context, place: Place, *, as_json: bool) -> None:
    """Check that a store can live there.

    Runs the conformance suites against storage and database, in places of their own that are removed again; nothing
    else is touched. Needs the extra doctor; on Postgres, leave to create schemas. Takes a minute or more. Exits with 1
    when something does not hold that must.
    """
    examined = _examine(place)
    if as_json:
        print_json(_json(examined))
    else:
        _print(examined)
    if not examined.ok:
        context.exit(FAILED)


def _examine(place: Place) -> Examination:
    from ckptstore.errors import InvalidArgument

    try:
        from ckptstore.testing.doctor import examine
    except ModuleNotFoundError as error:
        raise InvalidArgument(f'doctor needs the package {error.name}: pip install "ckptstore[doctor]"') from None
    return examine(place.url, catalog=place.catalog, storage_options=place.storage_options)


def _print(examined: Examination) -> None:
    if examined.findings:
        rows = [[one.suite, text.clean(one.check), text.clean(_remark(one))] for one in examined.findings]
        print_table(_FINDINGS, rows)
        click.echo()
    held = examined.checks - len(examined.findings)
    verdict = "a store can live there" if examined.ok else "a store is not safe there"
    click.echo(f"{held} of {text.count(examined.checks, 'check')} hold: {verdict}")


def _remark(finding: Finding) -> str:
    return f"need not: {finding.tolerated}" if finding.tolerated else finding.detail


def _json(examined: Examination) -> dict[str, Any]:
    findings = [
        {"suite": one.suite, "check": one.check, "detail": one.detail, "tolerated": one.tolerated or None}
        for one in examined.findings
    ]
    return {"ok": examined.ok, "checks": examined.checks, "findings": findings}
