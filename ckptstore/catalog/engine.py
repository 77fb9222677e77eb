"""Transactions on one database, and its errors as those of ckptstore."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, StatementError

from ckptstore.catalog import dialects, sqlite
from ckptstore.catalog.driver_errors import translated
from ckptstore.catalog.forking import close_before_fork, unforked
from ckptstore.catalog.reserve import Reserve
from ckptstore.errands import uninterrupted
from ckptstore.errors import (
    CatalogError,
    CatalogUnavailable,
    CkptStoreError,
    InvalidArgument,
    StorageFull,
    StorageReadOnly,
    TooManyConnections,
)
from ckptstore.patience import patiently

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """One database. Connections are made when needed, for each process its own, so it survives fork and pickle.

    Another file than the one of its connections may come to lie at its path: they are let go of then, and others made,
    unless it is the catalog of another store than `owner`.
    """

    def __init__(self, url: str, *, refusal: str = "", owner: str | None = None) -> None:
        self.parsed, self._refusal = _parse(url), refusal
        self._owner = _Owner(str(self.parsed.database), owner)
        self._file: tuple[int, int] | None = None
        self._engines: dict[int, Engine] = {}
        weakref.finalize(self, _dispose, self._engines).atexit = False  # Python warns of those that are left open
        self._reached = False
        self._reserve = Reserve(str(self.parsed.database)) if self._is_file() and not refusal else None
        if self._is_file():
            close_before_fork(self)

    def __reduce__(self) -> tuple[partial[Database], tuple[str]]:
        make = partial(Database, refusal=self._refusal, owner=self._owner.store)
        return make, (self.parsed.render_as_string(hide_password=False),)

    @property
    def url(self) -> str:
        """The address without its password."""
        return self.parsed.render_as_string(hide_password=True)

    def keep_to(self, store: str | None) -> None:
        """From now on refuse a file that is another store's."""
        self._owner.store = store

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one snapshot and waits for nobody."""
        with self._errors(), self._connect() as connection, dialects.reading(connection):
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction under the store's lock, durable when left without an error."""
        if self._refusal:
            raise StorageReadOnly(self._refusal)
        with self._errors(), self._connect() as connection, dialects.writing(connection):
            yield connection

    def ask(self, work: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs) -> T:
        """What `work` gives for the connection of a `read`. A signal's handler that raises ends the waiting for it.

        In the midst of it, that would leave locks of the pool taken, or the transaction open.
        """
        return uninterrupted(partial(self._giving_way, partial(_within, self.read, work, *given, **named)))

    def change(self, work: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs) -> T:
        """`ask` for a `write`, which is done whole also when the waiting for it is interrupted."""
        return uninterrupted(partial(_within, self.write, work, *given, **named))

    def free(self, work: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs) -> T:
        """`change` for what frees room in the end, so that a full disk does not keep it from that."""
        return uninterrupted(partial(self._giving_way, partial(_within, self.write, work, *given, **named)))

    def _giving_way(self, act: Callable[[], T]) -> T:
        """On a full disk, try with the log from its beginning again, and then with ever more of the reserve."""
        try:
            return act()
        except StorageFull:
            if self._reserve is None:
                raise
            with suppress(CkptStoreError), self._errors(), self._connect() as connection:
                sqlite.empty_log(connection)
        while True:
            try:
                return act()
            except StorageFull:
                if not self._reserve.give_way():
                    raise

    def keep_reserve(self) -> None:
        """Keep some room of the disk for `free`, and for opening, if there is enough of it."""
        if self._reserve is not None:
            self._reserve.fill()

    @contextmanager
    def rebuild(self) -> Iterator[Connection]:
        """`write`, for changing tables: SQLite does it by dropping them, which must not cascade. `close` follows."""
        with self._errors(), self._connect() as connection:
            sqlite.ignore_foreign_keys(connection)
            with dialects.writing(connection):
                yield connection
                if broken := sqlite.broken_references(connection):
                    raise CatalogError(f"the migration would break the catalog {self.url}: {broken[0]}")

    def prepare(self) -> None:
        """Make the place where tables can be created, if it is missing; a Postgres database must be there already."""
        if self._is_file():
            uninterrupted(self._prepare)

    def _prepare(self) -> None:
        with self._errors():
            sqlite.prepare_sqlite(self.parsed)

    def close(self) -> None:
        """Give back this process's connections; they are opened again when used."""
        if os.getpid() in self._engines:
            uninterrupted(partial(_dispose, self._engines))

    def _engine(self) -> Engine:
        found = self._engines.get(os.getpid())
        if found is not None:
            return found
        made = dialects.make_engine(self.parsed, only_read=bool(self._refusal), check=self._owner.check)
        return self._engines.setdefault(os.getpid(), made)

    def _connect(self) -> Connection:
        """A connection. A full server is waited for, one that is silent if it answered before: its address is right."""
        found = patiently(self._try_to_connect, CatalogUnavailable if self._reached else TooManyConnections)
        self._reached = True
        return found

    def _try_to_connect(self) -> Connection:
        with self._errors():
            if self._is_file():
                self._follow_file()
            return self._engine().connect()

    def _follow_file(self) -> None:
        known, self._file = self._file, sqlite.file_at(self.parsed)
        if known is not None and self._file != known:
            self.close()

    def _is_file(self) -> bool:
        return self.parsed.get_backend_name() == "sqlite"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        where = self.parsed.database if self._is_file() else self.url
        try:
            with unforked() if self._is_file() else nullcontext():
                yield
        except DBAPIError as error:
            raise translated(error.orig, str(where), lost=error.connection_invalidated) from error
        except StatementError as error:  # of what is no database's error, as a signal's handler may raise it
            raise (error.orig or error) from None
        except sqlite3.Error as error:
            raise translated(error, str(where)) from error
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{error.object!r} is no text that UTF-8 can hold: name it otherwise") from error
        except PermissionError as error:
            raise StorageReadOnly(f"catalog {where}: {error.strerror}") from error
        except OSError as error:
            raise CatalogError(f"catalog {where}: {error.strerror}") from error


def _dispose(engines: dict[int, Engine]) -> None:
    """Close this process's connections. Python's collector may call it anywhere, so that it waits for no thread."""
    engine = engines.pop(os.getpid(), None)
    if engine is not None:
        engine.dispose()


@dataclass
class _Owner:
    """The store whose catalog the file at `path` is to be, once that is known."""

    path: str
    store: str | None

    def check(self, connection: sqlite3.Connection) -> None:
        """Raises CatalogError for another one's."""
        if self.store is None or (found := sqlite.stores_in(connection)) == [self.store]:
            return
        problem = f"{self.path} is the catalog of {'another' if found else 'no'} store by now, and was left as it is"
        raise CatalogError(f"{problem}: open the store where it was moved to, or bring it back")


def _within(
    transaction: Callable[[], AbstractContextManager[Connection]],
    work: Callable[Concatenate[Connection, P], T],
    *given: P.args,
    **named: P.kwargs,
) -> T:
    with transaction() as connection:
        return work(connection, *given, **named)


def _parse(url: str) -> URL:
    advice = "give sqlite:///path/to/catalog.sqlite or postgresql://user@host/database"
    if not isinstance(url, str):
        raise InvalidArgument(f"the catalog's address {url!r} is a {type(url).__name__}, no database URL: {advice}")
    if "\0" in url:
        raise InvalidArgument(f"the catalog's address {url!r} has a NUL character in it: {advice}")
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except ModuleNotFoundError:
        pass  # reported with its extra when the engine is made
    except ArgumentError as error:
        raise InvalidArgument(f"the catalog's address is no database URL: {advice}") from error
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise InvalidArgument(f"the catalog can not be kept in {backend}: {advice}")
    if backend == "sqlite" and parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidArgument(f"the catalog is not reached by {parsed.drivername}: {advice}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidArgument(f"the catalog can not be kept in memory: {advice}")
    return parsed.set(database=os.path.abspath(parsed.database or "")) if backend == "sqlite" else parsed
