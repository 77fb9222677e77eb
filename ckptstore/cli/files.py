"""Commands that speak other formats: export, import."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_json, progress_bar
from ckptstore.cli.place import STEP, Place, reading_command, store_command

_SUFFIXES = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}
_LIGHTNING = ".ckpt"
_INSIDE = {
    ".metadata": "dcp",
    ".snapshot_metadata": "torchsnapshot",
    "model.safetensors": "safetensors",
    "model.safetensors.index.json": "safetensors",
    "__0.metadata": "dcp",  # whose import says what is wrong
}
_MODULES = {
    "safetensors": "safetensors",
    "torch": "torch_save",
    "dcp": "dcp_files",
    "torchsnapshot": "torchsnapshot",
}
_EXPORTED = ["safetensors", "torch", "dcp"]


@click.command("export", epilog=STEP)
@reading_command
@click.argument("step")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", help="Only what is beneath this name of the state, which import --name put there.")
@click.option("--paths", multiple=True, metavar="GLOB", help="Only these logical paths. May be repeated.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(_EXPORTED),
    help="By default by suffix: .safetensors, or .pt, .pth and .bin for torch.",
)
@click.option("--allow-pickle", is_flag=True, help="Write objects that are pickles, which are loaded for that.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists; a folder is never replaced.")
def export_(
    place: Place,
    *,
    step: str,
    file: Path,
    name: str | None,
    paths: tuple[str, ...],
    kind: str | None,
    allow_pickle: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a commit to a FILE that other tools read.

    That is a file of safetensors or torch.save, or a folder of torch.distributed.checkpoint (dcp). A safetensors file
    holds tensors only, named by their logical paths, or with --name as in the state dict that stands there.
    """
    kind = kind or _kind(file, _EXPORTED)
    if kind == "dcp" and force:
        raise click.UsageError("--force is for files: remove the folder first")
    options = {} if kind == "dcp" else {"overwrite": force}
    if kind != "safetensors":
        options["allow_pickle"] = allow_pickle
    elif allow_pickle:
        raise click.UsageError("--allow-pickle is for torch and dcp: a safetensors file holds tensors only")
    with place.open(step) as store, progress_bar() as progress:
        commit = store.find(step)
        _function("export", kind)(store, commit, file, name=name, paths=paths or None, progress=progress, **options)
    size = sum(part.stat().st_size for part in (file.iterdir() if file.is_dir() else [file]))
    if as_json:
        print_json({"run": commit.run, "step": commit.step, "file": str(file), "format": kind, "bytes": size})
    else:
        click.echo(f"wrote {commit.address} to {file}: {text.size(size)}")


@click.command("import")
@store_command
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--step", type=int, required=True, help="The new step.")
@click.option("--metadata", metavar="JSON", help='What `log` shows beside the step, as {"loss": 2.3}.')
@click.option("--parent", metavar="STEP", help="The commit that this one continues, of another run as run@step.")
@click.option("--name", help="Put everything beneath this name of the state; by default the names of FILE are on top.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(_MODULES)),
    help="By default by suffix, .safetensors, or .pt, .pth, .bin and .ckpt for torch; of a folder by what is in it.",
)
@click.option("--allow-pickle", is_flag=True, help="Load objects that are pickles, which can run any code.")
def import_(
    place: Place,
    *,
    file: Path,
    step: int,
    metadata: str | None,
    parent: str | None,
    name: str | None,
    kind: str | None,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Commit a FILE that another tool wrote.

    That is a file of safetensors or torch.save, or a folder of Hugging Face (model.safetensors, alone or in numbered
    files with an index), torch.distributed.checkpoint (dcp) or torchsnapshot. A run that --run names begins if
    it is new. What torch.save wrote is read with weights_only=True.
    """
    from ckptstore.cli.records import commit_json

    kind = kind or ("torch" if file.suffix == _LIGHTNING and file.is_file() else _kind(file, _MODULES))
    options: dict[str, Any] = {} if kind == "safetensors" else {"allow_pickle": allow_pickle}
    options |= {"metadata": _metadata(metadata), "parent": parent}
    with place.open(new_run=True) as store, progress_bar() as progress:
        commit = _function("import", kind)(store, file, step=step, name=name, progress=progress, **options)
        document = commit_json(commit) if as_json else None
    if document is not None:
        print_json(document)
    else:
        click.echo(f"committed {commit.address}: {text.count(commit.leaves, 'leaf', 'leaves')}")


def _metadata(given: str | None) -> Any:
    try:
        return None if given is None else json.loads(given)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--metadata {given:.60} is no JSON: {error}") from None


def _function(verb: str, kind: str) -> Any:
    return getattr(import_module(f"ckptstore.integrations.{_MODULES[kind]}"), f"{verb}_{kind}")


def _kind(file: Path, known: Iterable[str]) -> str:
    found = [kind for name, kind in _INSIDE.items() if (file / name).exists()]
    if file.is_dir() and any(inner.suffix in _SUFFIXES for inner in file.iterdir()):
        found.append("safetensors")  # as above
    if not found and file.suffix not in _SUFFIXES:
        doubt = f"holds none of {', '.join(_INSIDE)}" if file.is_dir() else "has a suffix that tells no format"
        raise click.UsageError(f"{file} {doubt}: give --format, one of {', '.join(known)}")
    return found[0] if found else _SUFFIXES[file.suffix]
