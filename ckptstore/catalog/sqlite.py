"""A catalog in SQLite's file: connecting, to write or only to read, and what it finds wrong with itself."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine

from ckptstore.catalog import waits
from ckptstore.catalog.driver_errors import code, sqlite_kind
from ckptstore.catalog.statements import SHARING
from ckptstore.errors import CatalogBusy, CatalogError, StorageFull
from ckptstore.patience import patiently

_COMING_SECONDS = 3.0
"""How long who may only read waits for a writer's log that is just made or removed."""

Check = Callable[[sqlite3.Connection], None]


def make_sqlite_engine(url: URL, *, only_read: bool, check: Check) -> Engine:
    """See `dialects.make_engine`."""
    path = _path(url)
    if _writable(path) and not (only_read and _disk_is_full(path)):
        connect = partial(_checked, lambda: connect_sqlite(path, "mode=rw"), check)
        return create_engine(url, creator=connect, poolclass=QueuePool, max_overflow=-1, execution_options=SHARING)
    connect = partial(_checked, lambda: _connect_read_only(path), check)
    return create_engine(url, creator=connect, poolclass=NullPool, execution_options=SHARING)


def file_at(url: URL) -> tuple[int, int] | None:
    """What tells SQLite's file at a path from others; None where none is seen."""
    with suppress(OSError):
        status = os.stat(_path(url))
        return status.st_dev, status.st_ino
    return None


def stores_in(connection: sqlite3.Connection) -> list[str]:
    """The ids of those whose catalog it is; none where there are no tables."""
    try:
        return [row[0] for row in connection.execute("SELECT id FROM stores")]
    except sqlite3.OperationalError as error:
        if code(error) != sqlite3.SQLITE_ERROR:
            raise
        return []


def prepare_sqlite(url: URL) -> None:
    """Create the file and its folder if they are missing, in WAL mode: reading never waits for the writer."""
    path = _path(url)
    if os.path.exists(path) and os.path.getsize(path):
        return
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
    connection = connect_sqlite(path, "mode=rwc")
    deadline = time.monotonic() + waits.BUSY_SECONDS
    try:
        while not _set_wal(connection) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        connection.close()


def connect_sqlite(path: str, mode: str) -> sqlite3.Connection:
    """A connection that leaves transactions to us and makes each commit durable."""
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?{mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=waits.BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def ignore_foreign_keys(connection: Connection) -> None:
    """Outside of a transaction: SQLite shall not look at foreign keys on this connection; Postgres need not."""
    if connection.dialect.name == "sqlite":
        connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")


def empty_log(connection: Connection) -> None:
    """Outside of a transaction: bring what SQLite's log holds to the file, as far as nobody reads it, so that the next
    transaction may write over it.
    """
    connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")


def integrity(connection: Connection, tables: Sequence[str] = ()) -> list[str]:
    """What the database itself finds wrong with its file, or only with some tables and their indexes.

    Postgres checks its pages by its own means.
    """
    if connection.dialect.name != "sqlite":
        return []
    return [line for about in _abouts(tables) for line in _integrity(connection, about)]


def broken_references(connection: Connection, about: str = "") -> list[str]:
    """Rows whose foreign key points at nothing, which only SQLite can have."""
    if connection.dialect.name != "sqlite":
        return []
    found = connection.exec_driver_sql(f"PRAGMA foreign_key_check{about}")
    return [f"row {row[1]} of {row[0]} points at nothing" for row in found]


def _abouts(tables: Sequence[str]) -> list[str]:
    """What a pragma is given to look at one table, or at all of the file."""
    return [f"('{table}')" for table in tables] or [""]


def _integrity(connection: Connection, about: str) -> list[str]:
    found = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check{about}")]
    return [line for line in found if line != "ok"] + broken_references(connection, about)


def _checked(connect: Callable[[], sqlite3.Connection], check: Check) -> sqlite3.Connection:
    connection = connect()
    try:
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _path(url: URL) -> str:
    return url.database or ""


def _writable(path: str) -> bool:
    folder = os.path.dirname(os.path.abspath(path))
    return not os.path.exists(path) or (os.access(path, os.W_OK) and os.access(folder, os.W_OK))


def _disk_is_full(path: str) -> bool:
    """Whether there is no room for the index of a writer's log, which SQLite makes where it may, also for reading."""
    try:
        with closing(connect_sqlite(path, "mode=rw")) as connection:
            _look(connection)
    except sqlite3.Error as error:
        return sqlite_kind(error) is StorageFull
    return False


def _connect_read_only(path: str) -> sqlite3.Connection:
    """A connection that changes nothing beside the file either. Raises CatalogError when it may not be read."""

    def act() -> sqlite3.Connection:
        try:
            return _try_read_only(path)
        except sqlite3.OperationalError:
            if os.path.exists(path) and not os.access(path, os.R_OK):
                message = f"the catalog {path} may not be read by this user: change its permissions"
                raise CatalogError(message) from None
            raise

    return patiently(act, sqlite3.OperationalError, _COMING_SECONDS)


def _try_read_only(path: str) -> sqlite3.Connection:
    """Without a writer's log beside it the file cannot change under one short transaction; SQLite could not lock it."""
    connection = connect_sqlite(path, "mode=ro" if _size(f"{path}-wal") else "mode=ro&immutable=1")
    try:
        _look(connection)  # from here on no writer takes the log away
    except BaseException:
        connection.close()
        raise
    return connection


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _look(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _set_wal(connection: sqlite3.Connection) -> bool:
    try:
        return bool(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal")
    except sqlite3.OperationalError as error:
        if sqlite_kind(error) is not CatalogBusy:  # this pragma does not wait for other openers by itself
            raise
        return False
