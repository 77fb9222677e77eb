"""All that SQLite and Postgres do differently in a transaction: the store's lock, the clock; and their engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, Float, create_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from ckptstore.catalog import waits
from ckptstore.catalog.idle import give_back_idle
from ckptstore.catalog.sqlite import Check, make_sqlite_engine
from ckptstore.catalog.statements import SHARING
from ckptstore.errors import InvalidArgument

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

_READ: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
_WRITE: dict[str, dict[str, Any]] = {"sqlite": {}, "postgresql": {"isolation_level": "READ COMMITTED"}}
_LOCK = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SELECT pg_advisory_xact_lock(1667984500, hashtext(current_schema()))",  # 1667984500: "ckpt"
}


def make_engine(url: URL, *, only_read: bool, check: Check) -> Engine:
    """An engine whose transactions are the ones `reading` and `writing` ask for; nobody writes with `only_read`.

    Each connection to a file is one that `check` does not raise for.
    """
    if url.get_backend_name() == "sqlite":
        return make_sqlite_engine(url, only_read=only_read, check=check)
    limits = {"lock_timeout": waits.BUSY_SECONDS, "idle_in_transaction_session_timeout": waits.IDLE_SECONDS}
    ours = " ".join(f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items())
    link = {name: value for name, value in _LINK.items() if name not in url.query}
    settings = {**link, "options": f"{ours} {url.query.get('options', '')}"}
    try:
        engine = create_engine(
            url, connect_args=settings, pool_pre_ping=True, max_overflow=-1, execution_options=SHARING
        )
    except ModuleNotFoundError as error:
        advice = 'pip install "ckptstore[postgres]", and write postgresql://'
        raise InvalidArgument(f"a catalog on Postgres needs the package {error.name}: {advice}") from None
    give_back_idle(engine)
    return engine


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
