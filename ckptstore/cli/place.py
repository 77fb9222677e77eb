"""What every command about a store takes: its place, its run, and how to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.environment import CATALOG, STORAGE_OPTIONS, catalog_for, is_folder, json_object, storage_options_for
from ckptstore.errors import CatalogError

if TYPE_CHECKING:
    from ckptstore.store import Store

DEFAULT_RUN = "main"
_MOST_RUNS = 20
STEP = "A STEP is a number, a tag, or latest; run@STEP is one of another run."

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is, and the run that was asked for, if one was; `catalog_from_env` if the environment named it."""

    url: str
    catalog: str | None
    key_file: str | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    run: str | None = None
    read_only: bool = False
    catalog_from_env: bool = False

    def completed(self) -> Place:
        """With what the environment gives and no option did."""
        catalog = catalog_for(self.url) if self.catalog is None else self.catalog
        options = storage_options_for(self.url) if self.storage_options is None else self.storage_options
        from_env = catalog is not None and self.catalog is None
        return replace(self, catalog=catalog, storage_options=options, catalog_from_env=from_env)

    def beside(
        self,
        url: str,
        catalog: str | None,
        key_file: str | None,
        storage_options: Mapping[str, Any] | None,
        *,
        read_only: bool = False,
    ) -> Place:
        """Another store of the same command; the environment is about it when this one is a folder, and it is none."""
        other = Place(url, catalog, key_file, storage_options, read_only=read_only)
        if is_folder(url) or not is_folder(self.url):
            return other
        known = other.completed()
        return replace(known, catalog=catalog, catalog_from_env=False) if self.catalog_from_env else known

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Errors of a catalog that the environment named say so."""
        try:
            yield
        except CatalogError as error:
            if self.catalog_from_env:
                raise type(error)(f"{error} ({CATALOG} names that catalog: unset it, or give --catalog)") from error
            raise

    def open(self, *steps: str, any_run: bool = False, new_run: bool = False) -> Store:
        """The store, which must be there already, on the run that was asked for, the default, or else the only one.

        Raises:
            NotAStore: it is not.
            RunNotFound: it has no such run; but `any_run`, or each of some `steps` that names its own, needs none, and
                with `new_run` one that was asked for may be new.
        """
        store = self._opened(DEFAULT_RUN if self.run is None else self.run)
        if any_run or (new_run and self.run is not None) or (steps and all("@" in step for step in steps)):
            return store
        known = [run.name for run in store.runs()]
        if store.run in known or not (known or self.run):
            return store
        store.close()
        if self.run is None and len(known) == 1:
            return self._opened(known[0])
        raise self._unknown_run(known)

    def is_encrypted(self) -> bool:
        """Whether the store has a key. Raises NotAStore when there is none."""
        from ckptstore.opening import existing_config
        from ckptstore.storage import open_storage
        from ckptstore.unlocking import is_sealed

        return is_sealed(existing_config(open_storage(self.url, storage_options=self.storage_options)))

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


def store_command(command: Command, *, run: bool = True) -> Command:
    """Give a command the arguments and options of every command about a store; it gets a `Place` for them."""

    @wraps(command)
    def placed(**given: Any) -> None:
        place = Place(**{one.name: given.pop(one.name) for one in fields(Place) if one.name in given})
        known = place.completed()
        with known.blaming():
            command(known, **given)

    for option in (_AS_JSON, _STORAGE_OPTIONS, _KEY_FILE, _CATALOG, *([_RUN] if run else []), _URL):
        placed = option(placed)
    return placed


def whole_store_command(command: Command) -> Command:
    """As `store_command`, for one that is about all runs, and so takes none."""
    return store_command(command, run=False)


def reading_command(command: Command) -> Command:
    """As `store_command`, for one that only reads."""
    return store_command(_READ_ONLY(command))


def whole_reading_command(command: Command) -> Command:
    """As `whole_store_command`, for one that only reads."""
    return whole_store_command(_READ_ONLY(command))


def json_option(command: Command) -> Command:
    """Give a command the option --json, as the argument `as_json`."""
    return _AS_JSON(command)


_URL = click.argument("url", metavar="STORE", type=click.Path(file_okay=False))
_RUN = click.option(
    "--run", metavar="NAME", help=f"The run that steps belong to.  [default: {DEFAULT_RUN}, or the only one]"
)
_CATALOG = click.option(
    "--catalog",
    metavar="URL",
    help=f"Database URL, when the catalog is not in the store's folder; by default {CATALOG}.",
)
_KEY_FILE = click.option("--key-file", metavar="FILE", help="The passphrase of an encrypted store.")
_STORAGE_OPTIONS = click.option(
    "--storage-options",
    metavar="JSON",
    callback=json_object,
    help=f"What fsspec needs to reach the STORE, such as an endpoint; by default {STORAGE_OPTIONS}.",
)
_READ_ONLY = click.option("--read-only", is_flag=True, help="Read a folder that lacks its catalog without one.")
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document.")
