"""From a URL to the catalog in that database, made where there is none yet; and what is known of it before."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import URL

from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.catalog.engine import Database
from ckptstore.catalog.versions import check_version, create_tables, missing, stored_version
from ckptstore.errors import CatalogError, InvalidArgument


def open_catalog(
    url: str,
    *,
    create: bool,
    refusal: str = "",
    before_making: Callable[[str], None] = lambda url: None,
    database: Database | None = None,
) -> SqlCatalog:
    """The catalog at a SQLAlchemy URL, `sqlite:///path/to/catalog.sqlite` or `postgresql://user@host/database`.

    With `create`, an empty place gets the schema, unless `before_making` raises CatalogError when it is given the URL;
    two processes may do so at once. With a `refusal`, every method that writes raises StorageReadOnly with it.
    Without one, a `database` of that URL is used that was at hand.

    Raises:
        InvalidArgument: not such a URL.
        SchemaTooOld, SchemaTooNew: the schema is not this version's.
        CatalogNotFound: there is none.
        CatalogError: the database can not be read.
    """
    if not create and is_missing(url):
        raise missing(f"the catalog {url} is not there")
    if database is None or refusal:
        database = Database(url, refusal=refusal)
    with ExitStack() as on_error:
        on_error.callback(database.close)
        if create:
            database.prepare()
        version = stored_version(database)
        if version is None and create:
            version = _make(database, before_making)
        check_version(version, database.url)
        on_error.pop_all()
    database.keep_reserve()
    return SqlCatalog(database)


def _make(database: Database, before: Callable[[str], None]) -> str:
    """An empty database's catalog; its revision."""
    try:
        before(database.url)
    except CatalogError:
        if stored_version(database) is None:  # no other process was faster
            raise
    return create_tables(database)


def owner_at(database: Database) -> str | None:
    """The id of the store whose catalog the database is, or None. Raises SchemaTooOld, SchemaTooNew, CatalogError."""
    if _is_missing(database):
        return None
    version = stored_version(database)
    if version is None:
        return None
    check_version(version, database.url)
    return SqlCatalog(database).owner()


def is_missing(url: str) -> bool:
    """Whether the address is that of a file which is not there."""
    return _is_missing(Database(url))


def _is_missing(database: Database) -> bool:
    parsed = database.parsed
    return parsed.get_backend_name() == "sqlite" and not os.path.exists(parsed.database or "")


def is_at(url: str, path: str | os.PathLike[str]) -> bool:
    """Whether the address is that of this file."""
    parsed = Database(url).parsed
    return parsed.get_backend_name() == "sqlite" and os.path.realpath(parsed.database or "") == os.path.realpath(path)


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a catalog in a file, whatever characters its path has. Raises InvalidArgument if they are none."""
    whole = os.path.abspath(path)
    try:
        return URL.create("sqlite", database=whole).render_as_string()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the path {whole!r} is no text that UTF-8 can hold: name it otherwise") from error
