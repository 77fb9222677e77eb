"""All that SQLite and Postgres do differently: connecting, the store's lock, the clock, and how they say no."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Float, NullPool, QueuePool, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ckptstore.catalog.idle import give_back_idle
from ckptstore.catalog.statements import COMPILED
from ckptstore.errors import (
    CatalogBusy,
    CatalogError,
    CatalogUnavailable,
    CkptStoreError,
    InvalidArgument,
    StorageFull,
    StorageReadOnly,
    TooManyConnections,
)
from ckptstore.patience import patiently

_COMING_SECONDS = 3.0
"""How long who may only read waits for a writer's log that is just made or removed."""

_FEWER = "raise the server's max_connections, put a pooler before it, or let fewer processes open the store at once"
_REBUILD = (
    "move it away with the -wal and -shm beside it, which may be another one's, and bring a copy of it back, or make "
    "it anew with ckptstore rebuild"
)
_DENIED = "42501"
_ADVICE_BY_CODE = {
    sqlite3.SQLITE_CANTOPEN: "check that it is there and may be read, and that its disk has room for one more file",
    sqlite3.SQLITE_IOERR: "its disk failed, or a quota or the limit of a file's size (ulimit -f) was met; try again",
    sqlite3.SQLITE_CORRUPT: _REBUILD,
    sqlite3.SQLITE_NOTADB: _REBUILD,
    _DENIED: "grant this role SELECT on all tables to read, and INSERT, UPDATE and DELETE to write",
}

BUSY_SECONDS = 30.0
"""How long a transaction waits for the store's lock."""

IDLE_SECONDS = 60.0
"""How long a writer may be silent while it holds the store's lock; Postgres ends its transaction then."""

_LINK = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""How soon a Postgres that is not there any more is noticed, in seconds and tries, and in milliseconds where something
is under way to it: systems send no keepalives then, and try for a quarter of an hour to deliver it.
"""

_NO_ANSWER = re.compile(
    "refused|reset|time[d ]?out|closed|unreachable|starting up|shutting down|recovery mode|accepting connections|"
    "Temporary failure"
)
_TOO_MANY = re.compile("too many (clients|connections)|connection slots are reserved|no more connections allowed")
"""What Postgres says, of the server, a role or a database, and PgBouncer."""

_SHARING = {"compiled_cache": COMPILED}
_READ: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
_WRITE: dict[str, dict[str, Any]] = {"sqlite": {}, "postgresql": {"isolation_level": "READ COMMITTED"}}
_LOCK = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SELECT pg_advisory_xact_lock(1667984500, hashtext(current_schema()))",  # 1667984500: "ckpt"
}


class Clock(FunctionElement[float]):
    """Seconds since 1970 on the database's clock, at the moment of the statement."""

    type = Float()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _sqlite_clock(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Clock, "postgresql")
def _postgres_clock(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


def make_engine(url: URL, *, only_read: bool, check: Callable[[sqlite3.Connection], None]) -> Engine:
    """An engine whose transactions are the ones `reading` and `writing` ask for; nobody writes with `only_read`.

    Each connection to a file is one that `check` does not raise for.
    """
    if url.get_backend_name() != "sqlite":
        limits = {"lock_timeout": BUSY_SECONDS, "idle_in_transaction_session_timeout": IDLE_SECONDS}
        ours = " ".join(f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items())
        link = {name: value for name, value in _LINK.items() if name not in url.query}
        settings = {**link, "options": f"{ours} {url.query.get('options', '')}"}
        try:
            engine = create_engine(
                url, connect_args=settings, pool_pre_ping=True, max_overflow=-1, execution_options=_SHARING
            )
        except ModuleNotFoundError as error:
            advice = 'pip install "ckptstore[postgres]", and write postgresql://'
            raise InvalidArgument(f"a catalog on Postgres needs the package {error.name}: {advice}") from None
        give_back_idle(engine)
        return engine
    path = _path(url)
    if _writable(path) and not (only_read and _disk_is_full(path)):
        connect = partial(_checked, lambda: connect_sqlite(path, "mode=rw"), check)
        return create_engine(url, creator=connect, poolclass=QueuePool, max_overflow=-1, execution_options=_SHARING)
    connect = partial(_checked, lambda: _connect_read_only(path), check)
    return create_engine(url, creator=connect, poolclass=NullPool, execution_options=_SHARING)


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
        if _code(error) != sqlite3.SQLITE_ERROR:
            raise
        return []


@contextmanager
def reading(connection: Connection) -> Iterator[None]:
    """A transaction that sees one snapshot and waits for nobody."""
    with connection.execution_options(**_READ[connection.dialect.name]).begin():
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        yield


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """A transaction that waits for the store's lock, and holds it to its end."""
    with connection.execution_options(**_WRITE[connection.dialect.name]).begin():
        connection.exec_driver_sql(_LOCK[connection.dialect.name])
        yield


def prepare_sqlite(url: URL) -> None:
    """Create the file and its folder if they are missing, in WAL mode: reading never waits for the writer."""
    path = _path(url)
    if os.path.exists(path) and os.path.getsize(path):
        return
    Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
    connection = connect_sqlite(path, "mode=rwc")
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        while not _set_wal(connection) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        connection.close()


def connect_sqlite(path: str, mode: str) -> sqlite3.Connection:
    """A connection that leaves transactions to us and makes each commit durable."""
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?{mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def integrity(connection: Connection, tables: Sequence[str] = ()) -> list[str]:
    """What the database itself finds wrong with its file, or only with some tables and their indexes.

    Postgres checks its pages by its own means.
    """
    if connection.dialect.name != "sqlite":
        return []
    return [line for about in _abouts(tables) for line in _integrity(connection, about)]


def damage_told(error: CatalogError) -> str | None:
    """What SQLite said of a file that is not as it wrote it, if that is what the error is of."""
    cause = error.__cause__
    said = cause.orig if isinstance(cause, DBAPIError) else cause
    return str(said) if _code(said) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else None


def ignore_foreign_keys(connection: Connection) -> None:
    """Outside of a transaction: SQLite shall not look at foreign keys on this connection; Postgres need not."""
    if connection.dialect.name == "sqlite":
        connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")


def empty_log(connection: Connection) -> None:
    """Outside of a transaction: bring what SQLite's log holds to the file, as far as nobody reads it, so that the next
    transaction may write over it.
    """
    connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")


def broken_references(connection: Connection, about: str = "") -> list[str]:
    """Rows whose foreign key points at nothing, which only SQLite can have."""
    if connection.dialect.name != "sqlite":
        return []
    found = connection.exec_driver_sql(f"PRAGMA foreign_key_check{about}")
    return [f"row {row[1]} of {row[0]} points at nothing" for row in found]


def translated(error: BaseException | None, where: str, *, lost: bool = False) -> CkptStoreError:
    """The error of our tree for one of the database driver's; `lost` when it broke the connection."""
    told = next(iter(str(error).splitlines()), "") or type(error).__name__
    if isinstance(error, sqlite3.Error):
        kind = _sqlite_kind(error)
    else:
        kind = CatalogUnavailable if lost else _postgres_kind(error)
    known = None if kind is StorageFull else _ADVICE_BY_CODE.get(_code(error))
    advice = known or {
        CatalogBusy: f"other writers held the lock for {BUSY_SECONDS:.0f} seconds; try again",
        CatalogUnavailable: "the database did not answer; try again",
        TooManyConnections: _FEWER,
        StorageFull: "make room and try again; nothing was changed",
        StorageReadOnly: "it can be read but not changed from here",
    }.get(kind)
    return kind(f"catalog {where}: {told}" + (f": {advice}" if advice else ""))


def _abouts(tables: Sequence[str]) -> list[str]:
    """What a pragma is told to look at one table, or at all of the file."""
    return [f"('{table}')" for table in tables] or [""]


def _integrity(connection: Connection, about: str) -> list[str]:
    found = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check{about}")]
    return [line for line in found if line != "ok"] + broken_references(connection, about)


def _checked(
    connect: Callable[[], sqlite3.Connection], check: Callable[[sqlite3.Connection], None]
) -> sqlite3.Connection:
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
        return _sqlite_kind(error) is StorageFull
    return False


def _connect_read_only(path: str) -> sqlite3.Connection:
    """A connection that changes nothing beside the file either. Raises CatalogError when it may not be read."""

    def act() -> sqlite3.Connection:
        try:
            return _try_read_only(path)
        except sqlite3.OperationalError:
            if os.path.exists(path) and not os.access(path, os.R_OK):
                told = f"the catalog {path} may not be read by this user: change its permissions"
                raise CatalogError(told) from None
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
        if _sqlite_kind(error) is not CatalogBusy:  # this pragma does not wait for other openers by itself
            raise
        return False


def _sqlite_kind(error: sqlite3.Error) -> type[CkptStoreError]:
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFull  # no room for the log's index
    kinds: dict[int | str, type[CkptStoreError]] = {
        sqlite3.SQLITE_BUSY: CatalogBusy,
        sqlite3.SQLITE_LOCKED: CatalogBusy,
        sqlite3.SQLITE_FULL: StorageFull,
        sqlite3.SQLITE_READONLY: StorageReadOnly,
    }
    return kinds.get(_code(error), CatalogError)


def _code(error: BaseException | None) -> int | str:
    """Postgres' state, or SQLite's code without what it adds to tell more."""
    return getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _postgres_kind(error: Any) -> type[CkptStoreError]:
    kinds: dict[str, type[CkptStoreError]] = {
        "55P03": CatalogBusy,
        "40P01": CatalogBusy,
        "53300": TooManyConnections,
        "53100": StorageFull,
        "25006": StorageReadOnly,
        _DENIED: StorageReadOnly,
    }
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return kinds.get(state, CatalogError)
    if _TOO_MANY.search(str(error)):  # before there is a connection, libpq tells no state
        return TooManyConnections
    return CatalogUnavailable if _NO_ANSWER.search(str(error)) else CatalogError
