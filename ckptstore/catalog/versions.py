"""Which schema a database has, and the schema for one that has none.

A new catalog gets its tables from the models, not from the migrations: Alembic keeps its context in globals, so two
threads could not open new stores at once, and importing it takes longer than all the rest. Tests prove that both ways
lead to the same schema.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, select

from ckptstore.catalog.engine import Database
from ckptstore.catalog.schema import HEAD, metadata
from ckptstore.errors import CatalogError, CatalogNotFound, SchemaTooNew, SchemaTooOld

# As Alembic makes it.
_stamp = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def stored_version(database: Database) -> str | None:
    """The revision a database is at; None when it has no tables. CatalogError when its tables are not ours."""
    return database.ask(read_version, database.url)


def read_version(db: Connection, url: str) -> str | None:
    """`stored_version`, inside a transaction."""
    tables = inspect(db).get_table_names()
    if _stamp.name in tables:
        return db.execute(select(_stamp.c.version_num)).scalar()
    if tables:
        raise CatalogError(f"{url} is a database of something else: give ckptstore one of its own")
    return None


def create_tables(database: Database) -> str:
    """Give an empty database the newest schema, unless another process was faster; its revision."""
    return database.change(_create, database.url)


def _create(db: Connection, url: str) -> str:
    found = read_version(db, url)
    if found is not None:
        return found
    metadata.create_all(db, checkfirst=False)
    _stamp.create(db, checkfirst=False)
    db.execute(insert(_stamp).values(version_num=HEAD))
    return HEAD


def missing(problem: str) -> CatalogNotFound:
    """The error for a catalog that is not there."""
    return CatalogNotFound(f"{problem}: ckptstore init makes one, ckptstore rebuild where the store holds commits")


def check_version(version: str | None, url: str) -> None:
    """Raise unless this version of ckptstore reads and writes that revision."""
    if version is None:
        raise missing(f"{url} holds no catalog: the database is empty")
    if version < HEAD:
        raise SchemaTooOld(
            f"the catalog {url} has schema {version}, this ckptstore needs {HEAD}: run `ckptstore migrate <store>`"
        )
    if version > HEAD:
        raise SchemaTooNew(
            f"the catalog {url} has schema {version}, this ckptstore knows up to {HEAD}: update ckptstore"
        )
