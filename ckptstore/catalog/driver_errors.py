"""Errors of the tree for what SQLite and Postgres say."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError

from ckptstore.catalog import waits
from ckptstore.errors import (
    CatalogBusy,
    CatalogError,
    CatalogUnavailable,
    CkptStoreError,
    StorageFull,
    StorageReadOnly,
    TooManyConnections,
)

_FEWER = "raise the server's max_connections, put a pooler before it, or let fewer processes open the store at once"
_REBUILD = (
    "move it away with the -wal and -shm beside it, which may be another one's, and bring a copy of it back, or make "
    "it anew with ckptstore rebuild"
)
_TWICE = "somebody entered the same meanwhile, as a second rebuild would: let it end, and try again if it failed"
_DENIED = "42501"
_ADVICE_BY_CODE = {
    sqlite3.SQLITE_CANTOPEN: "check that it is there and may be read, and that its disk has room for one more file",
    sqlite3.SQLITE_IOERR: "its disk failed, or a quota or the limit of a file's size (ulimit -f) was met; try again",
    sqlite3.SQLITE_CORRUPT: _REBUILD,
    sqlite3.SQLITE_NOTADB: _REBUILD,
    sqlite3.SQLITE_CONSTRAINT: _TWICE,
    "23505": _TWICE,
    _DENIED: "grant this role SELECT on all tables to read, and INSERT, UPDATE and DELETE to write",
}

_NO_ANSWER = re.compile(
    "refused|reset|time[d ]?out|closed|unreachable|starting up|shutting down|recovery mode|accepting connections|"
    "Temporary failure"
)
_TOO_MANY = re.compile("too many (clients|connections)|connection slots are reserved|no more connections allowed")
"""What Postgres says, of the server, a role or a database, and PgBouncer."""


def translated(error: BaseException | None, where: str, *, lost: bool = False) -> CkptStoreError:
    """The error of our tree for one of the database driver's; `lost` when it broke the connection."""
    message = next(iter(str(error).splitlines()), "") or type(error).__name__
    if isinstance(error, sqlite3.Error):
        kind = sqlite_kind(error)
    else:
        kind = CatalogUnavailable if lost else _postgres_kind(error)
    known = None if kind is StorageFull else _ADVICE_BY_CODE.get(code(error))
    advice = known or {
        CatalogBusy: f"other writers held the lock for {waits.BUSY_SECONDS:.0f} seconds; try again",
        CatalogUnavailable: "the database did not answer; try again",
        TooManyConnections: _FEWER,
        StorageFull: "make room and try again; nothing was changed",
        StorageReadOnly: "it can be read but not changed from here",
    }.get(kind)
    return kind(f"catalog {where}: {message}" + (f": {advice}" if advice else ""))


def damage_message(error: CatalogError) -> str | None:
    """What SQLite said of a file that is not as it wrote it, if that is what the error is of."""
    cause = error.__cause__
    said = cause.orig if isinstance(cause, DBAPIError) else cause
    return str(said) if code(said) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else None


def sqlite_kind(error: sqlite3.Error) -> type[CkptStoreError]:
    """The class of our tree for what SQLite says."""
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if extended == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StorageFull  # no room for the log's index
    kinds: dict[int | str, type[CkptStoreError]] = {
        sqlite3.SQLITE_BUSY: CatalogBusy,
        sqlite3.SQLITE_LOCKED: CatalogBusy,
        sqlite3.SQLITE_FULL: StorageFull,
        sqlite3.SQLITE_READONLY: StorageReadOnly,
    }
    return kinds.get(code(error), CatalogError)


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
    if _TOO_MANY.search(str(error)):  # before there is a connection, libpq gives no state
        return TooManyConnections
    return CatalogUnavailable if _NO_ANSWER.search(str(error)) else CatalogError


def code(error: BaseException | None) -> int | str:
    """Postgres' state, or SQLite's code without what it adds for more detail."""
    return getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
