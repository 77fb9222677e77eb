"""What only Postgres has: schemas, options in its URL, passwords."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import create_engine, text

from ckptstore.catalog.catalog import open_catalog
from ckptstore.errors import CatalogBusy, CatalogError
from ckptstore.testing.catalog_making import make, new_commit


def in_schema(postgres, name):
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{postgres}&options=-csearch_path%3D{name}"


def test_two_stores_in_schemas_of_one_database(postgres):
    first, second = in_schema(postgres, "one"), in_schema(postgres, "two")
    with closing(open_catalog(first, create=True)) as one, closing(open_catalog(second, create=True)) as two:
        made = make(one, new_commit(7))
        assert one.commits() == [made]
        assert two.commits() == []
        make(two, new_commit(7))
        assert one.commits() == [made]


def test_waiting_for_the_lock_ends(postgres, monkeypatch):
    monkeypatch.setattr("ckptstore.catalog.dialects.BUSY_SECONDS", 0.1)
    with (
        closing(open_catalog(postgres, create=True)) as catalog,
        closing(open_catalog(postgres, create=False)) as other,
    ):
        with catalog._database.write(), pytest.raises(CatalogBusy, match="try again"):
            make(other, new_commit(0))
        make(other, new_commit(0))


def test_a_password_is_not_told():
    with pytest.raises(CatalogError) as found:
        open_catalog("postgresql://user:hunter2@127.0.0.1:1/none", create=True)
    assert "hunter2" not in str(found.value)
    assert "127.0.0.1" in str(found.value)
