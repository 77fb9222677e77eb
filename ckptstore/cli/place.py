"""What every command about a store takes: its place, its run, and how to answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ckptstore.store import Store

DEFAULT_RUN = "main"
_MOST_RUNS = 20
STEP = "A STEP is a number, a tag, or latest; run@STEP is one of another run."

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is, and the run that was asked for, if one was."""

    url: str
    catalog: str | None
    run: str | None
    key_file: str | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    read_only: bool = False

    def open(self, *steps: str, any_run: bool = False) -> Store:
        """The store, which must be there already, on the run that was asked for, the default, or else the only one.

        Raises:
            NotAStore: it is not.
            RunNotFound: it has no such run; but `any_run`, or each of some `steps` that names its own, needs none.
        """
        store = self._opened(self.run or DEFAULT_RUN)
        if any_run or (steps and all("@" in step for step in steps)):
            return store
        known = [run.name for run in store.runs()]
        if store.run in known or not (known or self.run):
            return store
        store.close()
        if self.run is None and len(known) == 1:
            return self._opened(known[0])
        raise self._unknown_run(known)

    @property
    def reached_by(self) -> dict[str, Any]:
        """What `ckptstore.open` and its like take beside the URL."""
        return {"catalog": self.catalog, "key_file": self.key_file, "storage_options": self.storage_options}

    def _opened(self, run: str) -> Store:
        from ckptstore.store import open_store

        return open_store(self.url, run=run, create=False, read_only=self.read_only, **self.reached_by)

    def _unknown_run(self, known: list[str]) -> Exception:
        from ckptstore.errors import RunNotFound, nearest

        name = self.run or DEFAULT_RUN
        there = nearest(name, known) if self.run else f"there are {', '.join(known[:_MOST_RUNS])}"
        return RunNotFound(f"no run {name!r}: choose one with --run; {there}")


def store_command(command: Command) -> Command:
    """Give a command the arguments and options of every command about a store; it gets a `Place` for them."""

    @wraps(command)
    def placed(**given: Any) -> None:
        place = Place(**{one.name: given.pop(one.name) for one in fields(Place) if one.name in given})
        command(place, **given)

    for option in (_AS_JSON, _STORAGE_OPTIONS, _KEY_FILE, _CATALOG, _RUN, _URL):
        placed = option(placed)
    return placed


def reading_command(command: Command) -> Command:
    """As `store_command`, for one that only reads."""
    return store_command(_READ_ONLY(command))


def json_option(command: Command) -> Command:
    """Give a command the option --json, as the argument `as_json`."""
    return _AS_JSON(command)


def json_object(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """An option's text as what it is in JSON. The text is never told: there may be secrets in it."""
    if text is None:
        return None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise click.BadParameter(f"give a JSON object, such as '{_EXAMPLE}'", context, parameter)


_EXAMPLE = '{"client_kwargs": {"endpoint_url": "http://localhost:9000"}}'
_URL = click.argument("url", type=click.Path(file_okay=False))
_RUN = click.option(
    "--run", metavar="NAME", help=f"The run that steps belong to.  [default: {DEFAULT_RUN}, or the only one]"
)
_CATALOG = click.option(
    "--catalog",
    metavar="URL",
    envvar="CKPTSTORE_CATALOG",
    help="Database URL, when the catalog is not in the store's folder; by default CKPTSTORE_CATALOG.",
)
_KEY_FILE = click.option("--key-file", metavar="FILE", help="The passphrase of an encrypted store.")
_STORAGE_OPTIONS = click.option(
    "--storage-options",
    metavar="JSON",
    envvar="CKPTSTORE_STORAGE_OPTIONS",
    callback=json_object,
    help="What fsspec needs to reach the URL, such as an endpoint; by default CKPTSTORE_STORAGE_OPTIONS.",
)
_READ_ONLY = click.option("--read-only", is_flag=True, help="Read a folder that lacks its catalog without one.")
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
