"""The command push."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.environment import json_object
from ckptstore.cli.output import print_json, progress_bar
from ckptstore.cli.place import STEP, Place, reading_command

if TYPE_CHECKING:
    from ckptstore.catalog.records import CommitRecord


@click.command(epilog=STEP)
@reading_command
@click.argument("target", type=click.Path(file_okay=False))
@click.argument("step", nargs=-1)
@click.option("--target-run", metavar="NAME", help="The run they arrive in.  [default: the one of the same name]")
@click.option("--target-catalog", metavar="URL", help="TARGET's database URL, when that is not in its folder.")
@click.option("--target-key-file", metavar="FILE", help="TARGET's passphrase, when it is encrypted.")
@click.option(
    "--target-storage-options", metavar="JSON", callback=json_object, help="What fsspec needs to reach TARGET."
)
def push(
    place: Place,
    *,
    target: str,
    step: tuple[str, ...],
    target_run: str | None,
    target_catalog: str | None,
    target_key_file: str | None,
    target_storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Copy commits into the store TARGET.

    All of the run, or each STEP. Only chunks that TARGET lacks are read and stored there; a commit that it has is
    success. Tags are not copied. A new TARGET is made with init.
    """
    from ckptstore.cli.records import commit_json

    other = place.beside(target, target_catalog, target_key_file, target_storage_options)
    with ExitStack() as stack:
        store = stack.enter_context(place.open(*step))
        stack.enter_context(other.blaming())
        there = stack.enter_context(other.open(any_run=True))
        progress = stack.enter_context(progress_bar())
        pushed = store.push(there, *step, run=target_run, progress=progress)
    if as_json:
        print_json([commit_json(commit) for commit in pushed])
    else:
        _print(pushed)


def _print(pushed: list[CommitRecord]) -> None:
    for commit in pushed:
        click.echo(f"pushed {commit.address}: {text.size(commit.new_bytes)} new")
    if not pushed:
        click.echo("nothing to push: the target has all of it")
