"""Whose catalog it is."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from ckptstore.catalog.schema import stores


def owner(db: Connection) -> str | None:
    """The id of the store, or None while it is of none."""
    found: str | None = db.execute(select(stores.c.id)).scalar()
    return found


def bind(db: Connection, store: str) -> None:
    """Make it the catalog of a store, if it is of none yet."""
    if owner(db) is None:
        db.execute(insert(stores).values(id=store))
