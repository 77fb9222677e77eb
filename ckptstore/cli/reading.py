"""The command read: what is in the leaves of a commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import text
from ckptstore.cli.output import print_json
from ckptstore.cli.place import STEP, Place, reading_command

if TYPE_CHECKING:
    from ckptstore.format.manifest import Container, Entry
    from ckptstore.operations.view import ManifestView
    from ckptstore.state.arrays import Array
    from ckptstore.store import Store

_NUMBER = re.compile(rf"-?[0-9]{{1,{text.MOST_DIGITS}}}")
_EXAMPLE = '"0:8, 3, ..."'
_TOGETHER, _TOGETHER_BYTES = 4096, 32 << 20


def index_of(context: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """An option's text as an index of numpy: ints, slices and `...`. Without one, `...`."""
    if given is None:
        return ...
    index = tuple(_item(item.strip(), context, parameter) for item in given.split(","))
    if index.count(...) > 1:
        raise click.BadParameter(f"{given!r} has more than one ...", context, parameter)
    return index


def _item(item: str, context: click.Context, parameter: click.Parameter) -> Any:
    if item == "...":
        return ...
    parts = [part.strip() for part in item.split(":")]
    sliced = len(parts) > 1
    if len(parts) > 3 or not all(_NUMBER.fullmatch(part) or (sliced and not part) for part in parts):
        advice = f"{item!r} is no int, no start:stop or start:stop:step, and not ...: give such as {_EXAMPLE}"
        raise click.BadParameter(advice, context, parameter)
    numbers = [int(part) if part else None for part in parts]
    if len(numbers) == 3 and numbers[2] is not None and numbers[2] < 1:
        raise click.BadParameter(f"{item!r} has the step {numbers[2]}: give 1 or more", context, parameter)
    return slice(*numbers) if sliced else numbers[0]


@click.command(epilog=STEP)
@reading_command
@click.argument("step")
@click.argument("path")
@click.option(
    "--index",
    metavar="INDEX",
    callback=index_of,
    help=f"Only these elements of an array, as numpy takes them: {_EXAMPLE}.",
)
def read(place: Place, *, step: str, path: str, index: Any, as_json: bool) -> None:
    """Print a leaf of a commit, or all beneath a container.

    PATH is a logical path, or a glob that selects several. Of an array, its dtype, shape and elements are printed,
    abbreviated as torch or numpy does; with --json all of them. Nothing else of the commit is read, and with --index
    only the chunks that hold these elements.
    """
    with place.open(step) as store:
        view = store.manifest(step)
        leaves = _leaves(view, path, index)
        render: Callable[[Entry, Array | str], Any] = _json if as_json else _text
        rendered = {name: render(leaves[name], leaf) for name, leaf in _found(store, view, leaves, index)}
    container = view.manifest.containers.get(path)
    if as_json:
        print_json({"path": path, **(rendered[path] if path in view else _several_json(container, rendered))})
    elif path in view:
        click.echo(rendered[path])
    elif rendered or container is None:
        click.echo("\n".join(f"{text.clean(name)}: {leaf}" for name, leaf in rendered.items()))
    else:
        click.echo(f"{path!r} is an empty {container.kind}", err=True)


def _leaves(view: ManifestView, path: str, index: Any) -> dict[str, Entry]:
    """The leaf at the path, or those beneath it, or those that it selects."""
    from glob import escape

    from ckptstore.errors import InvalidArgument
    from ckptstore.format.manifest import TensorEntry
    from ckptstore.operations.paths import chosen

    there = path in view or path in view.manifest.containers
    leaves = chosen(view.manifest.entries, [escape(path) if there else path])
    if not there and not leaves:
        raise view.unknown(path)
    other = next((name for name, entry in leaves.items() if not isinstance(entry, TensorEntry)), None)
    if index is not ... and other is not None:
        raise InvalidArgument(f"{other!r} is no array: --index is for those")
    return leaves


def _found(
    store: Store, view: ManifestView, leaves: Mapping[str, Entry], index: Any
) -> Iterator[tuple[str, Array | str]]:
    """Each leaf: an array, or a plain value as Python text. As many as fit into some memory are read together."""
    from ckptstore.chunkstore.grouping import groups
    from ckptstore.format.manifest import entry_bytes

    for group in groups(leaves.items(), lambda item: entry_bytes(item[1]), _TOGETHER_BYTES, _TOGETHER):
        arrays = _arrays(store, dict(group), index)
        for path, _ in group:
            yield path, arrays[path] if path in arrays else _value(store, view, path)


def _arrays(store: Store, leaves: Mapping[str, Entry], index: Any) -> dict[str, Array]:
    """Those of the leaves that are arrays, as they can be printed. Without one, torch is not imported."""
    from ckptstore.format.manifest import TensorEntry

    arrays = {path: entry for path, entry in leaves.items() if isinstance(entry, TensorEntry)}
    if not arrays:
        return {}
    from ckptstore.operations.loading.read import read_arrays

    found = read_arrays(store._parts, arrays, index, budget=None)  # noqa: SLF001 - what it is made of
    return {path: _printable(array) for path, array in found.items()}


def _value(store: Store, view: ManifestView, path: str) -> str:
    """A plain value as Python text, as `ls` has it. A pickle is refused."""
    from ckptstore.cli.values import shown
    from ckptstore.format.manifest import ValueEntry

    entry = view[path]
    assert isinstance(entry, ValueEntry)
    if entry.size or (isinstance(entry.value, dict) and "pickle" in entry.value):
        from ckptstore.state.values import encode

        return shown(encode(store.read(view.commit, path), path))
    return shown(entry.value)


def _printable(array: Array) -> Array:
    """The array, or its bits as ints where torch cannot print its dtype, as of int4 or bits8."""
    try:
        array[(slice(1),) * array.ndim].tolist()
    except RuntimeError:
        import torch

        assert isinstance(array, torch.Tensor)
        return array.view(getattr(torch, f"uint{8 * array.itemsize}"))
    return array


def _text(entry: Entry, found: Array | str) -> str:
    from ckptstore.cli.records import dtype

    return text.clean(found) if isinstance(found, str) else f"{dtype(entry)} {list(found.shape)}\n{found!r}"


def _json(entry: Entry, found: Array | str) -> dict[str, Any]:
    from ckptstore.cli.records import entry_json

    if isinstance(found, str):
        return entry_json(entry) | {"value": found}
    form = {"shape": list(found.shape), "bytes": found.nbytes}
    return entry_json(entry) | form | {"values": _elements(found.tolist())}


def _several_json(container: Container | None, leaves: dict[str, Any]) -> dict[str, Any]:
    from ckptstore.cli.records import container_json

    nature = {} if container is None else container_json(container)
    return nature | {"leaves": [{"path": path, **leaf} for path, leaf in leaves.items()]}


def _elements(found: Any) -> Any:
    """Nested lists; elements that JSON has no form for, as complex numbers, become text."""
    if isinstance(found, bool | int | float | str):
        return found
    if found is None:  # what numpy makes of a moment that is none
        return "NaT"
    if getattr(found, "shape", ()):  # an array in an element of a structured one
        return _elements(found.tolist())
    return [_elements(item) for item in found] if isinstance(found, list | tuple) else str(found)
