"""Commands that speak other formats: export, import."""

from __future__ import annotations

from pathlib import Path

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_json, progress_bar
from ckptstore.cli.place import STEP, Place, store_command

_SUFFIXES = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}

_FORMAT = click.option(
    "--format",
    "kind",
    type=click.Choice(["safetensors", "torch"]),
    help="By default by suffix: .safetensors, or .pt, .pth and .bin for torch.",
)


@click.command("export", epilog=STEP)
@store_command
@click.argument("step")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--paths", multiple=True, metavar="GLOB", help="Only these logical paths. May be repeated.")
@_FORMAT
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def export_(
    place: Place, *, step: str, file: Path, paths: tuple[str, ...], kind: str | None, force: bool, as_json: bool
) -> None:
    """Write a commit to a FILE of safetensors or torch.save.

    A safetensors file holds tensors only, named by their logical paths.
    """
    kind = kind or _kind(file)
    with place.open() as store, progress_bar() as progress:
        commit = store.find(step)
        if kind == "torch":
            from ckptstore.integrations.torch_save import export_torch as export
        else:
            from ckptstore.integrations.safetensors import export_safetensors as export
        export(store, commit, file, paths=paths or None, overwrite=force, progress=progress)
    size = file.stat().st_size
    if as_json:
        print_json({"run": commit.run, "step": commit.step, "file": str(file), "format": kind, "bytes": size})
    else:
        click.echo(f"wrote {commit.run}@{commit.step} to {file}: {text.size(size)}")


@click.command("import")
@store_command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--step", type=int, required=True, help="The new step.")
@click.option("--name", help="Put everything beneath this name of the state; by default the names of FILE are on top.")
@_FORMAT
def import_(place: Place, *, file: Path, step: int, name: str | None, kind: str | None, as_json: bool) -> None:
    """Commit a FILE of safetensors or torch.save. The run begins if it is new.

    Files of torch.save are read with weights_only=True.
    """
    from ckptstore.cli.records import commit_json

    kind = kind or _kind(file)
    with place.open(any_run=True) as store, progress_bar() as progress:
        if kind == "torch":
            from ckptstore.integrations.torch_save import import_torch as read
        else:
            from ckptstore.integrations.safetensors import import_safetensors as read
        commit = read(store, file, step=step, name=name, progress=progress)
        document = commit_json(commit) if as_json else None
    if document is not None:
        print_json(document)
    else:
        click.echo(f"committed {commit.run}@{commit.step}: {text.count(commit.leaves, 'leaf', 'leaves')}")


def _kind(file: Path) -> str:
    if file.suffix not in _SUFFIXES:
        raise click.UsageError(f"the format of {file.name} is not known by its suffix: give --format")
    return _SUFFIXES[file.suffix]
