"""A Postgres server has few connections: an idle store keeps none, and who gets none waits for one."""

from __future__ import annotations

import multiprocessing
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg
import pytest
import torch

import ckptstore

LIMIT = 3
WEIGHT = torch.arange(12.0).reshape(3, 4)


@dataclass
class Crowd:
    """An empty database of a role that may have only `LIMIT` connections at a time."""

    url: str
    role: str
    watching: psycopg.Connection

    def count(self) -> int:
        """How many it has."""
        found = self.watching.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", [self.role])
        return sum(count for (count,) in found)

    def assert_all_come_back(self) -> None:
        deadline = time.monotonic() + 30
        while self.count() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.count() == 0

    def take_all(self) -> ExitStack:
        """Connections of others; close it to let them go."""
        self.assert_all_come_back()
        taken = ExitStack()
        for _ in range(LIMIT):
            taken.enter_context(closing(psycopg.connect(self.url)))
        return taken


@pytest.fixture
def crowd(postgres) -> Iterator[Crowd]:
    role = f"role_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as watching:
        database = watching.info.dbname
        watching.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {LIMIT}")
        watching.execute(f"ALTER DATABASE {database} OWNER TO {role}")
        yield Crowd(postgres.replace("postgres:@", f"{role}:@"), role, watching)


@pytest.fixture
def place(tmp_path, crowd) -> str:
    """A store with one commit."""
    with ckptstore.open(tmp_path / "store", catalog=crowd.url) as store:
        store.commit({"model": {"weight": WEIGHT}}, step=1)
    return str(tmp_path / "store")


def use(store: ckptstore.Store) -> None:
    assert store.latest() == 1
    assert torch.equal(store.checkout(1)["model"]["weight"], WEIGHT)
    assert torch.equal(store.read(1, "model/weight", index=1), WEIGHT[1])
    assert [record.step for record in store.log()] == [1]


def test_a_store_that_is_idle_keeps_no_connection(place, crowd):
    with ckptstore.open(place, catalog=crowd.url) as store:
        crowd.assert_all_come_back()
        use(store)
        crowd.assert_all_come_back()
        store.commit({"model": {"weight": WEIGHT + 1}}, step=2)
        crowd.assert_all_come_back()
        with ThreadPoolExecutor(LIMIT) as threads:
            assert list(threads.map(lambda _: store.latest(), range(20))) == [2] * 20
        crowd.assert_all_come_back()


def test_more_stores_are_open_than_there_are_connections(place, crowd):
    with ExitStack() as opened:
        stores = [opened.enter_context(ckptstore.open(place, catalog=crowd.url)) for _ in range(3 * LIMIT)]
        for store in stores:
            use(store)
        crowd.assert_all_come_back()


def test_more_come_at_once_than_there_are_connections(place, crowd):
    ranks = 6 * LIMIT
    ready = threading.Barrier(ranks, timeout=30)

    def rank(_):
        ready.wait()
        with ckptstore.open(place, catalog=crowd.url) as store:
            ready.wait()  # all have it open
            use(store)

    with ThreadPoolExecutor(ranks) as threads:
        list(threads.map(rank, range(ranks)))
    crowd.assert_all_come_back()


def test_a_forked_child_keeps_none_either(place, crowd):
    with ckptstore.open(place, catalog=crowd.url) as store:
        use(store)  # the connection and what watches it are there when the child begins
        ends = multiprocessing.get_context("fork").Event()

        def work():
            use(store)
            ends.wait()

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        try:
            crowd.assert_all_come_back()
            assert child.is_alive()
        finally:
            ends.set()
            child.join()
        assert child.exitcode == 0


def assert_waits(crowd, act):
    with crowd.take_all() as others, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(act)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        others.close()
        return waiting.result(30)


def test_who_gets_no_connection_waits_for_one(place, crowd):
    store = assert_waits(crowd, lambda: ckptstore.open(place, catalog=crowd.url))
    with store:
        assert assert_waits(crowd, store.latest) == 1


def test_who_waited_in_vain_hears_what_helps(place, crowd, monkeypatch):
    monkeypatch.setattr("ckptstore.patience.PATIENCE", 0.5)
    with crowd.take_all(), pytest.raises(ckptstore.TooManyConnections) as found:
        ckptstore.open(place, catalog=crowd.url)
    assert isinstance(found.value, ckptstore.CatalogUnavailable)
    assert all(word in str(found.value) for word in (crowd.role, "max_connections", "pooler", "fewer"))
    with ckptstore.open(place, catalog=crowd.url) as store:
        use(store)


@pytest.mark.parametrize(("right", "wrong"), [("postgres:@", "nobody:@"), ("/database_", "/none_")])
def test_a_wrong_address_is_reported_after_one_try(far_postgres, tmp_path, right, wrong):
    database, proxy = far_postgres
    with pytest.raises(ckptstore.CatalogError, match=r"(nobody|none_\w+).* does not exist"):
        ckptstore.open(tmp_path / "store", catalog=database.replace(right, wrong))
    assert proxy.connections == 1


def test_what_follows_soon_takes_the_same_connection(far_postgres, tmp_path, monkeypatch):
    monkeypatch.setattr("ckptstore.catalog.idle.LINGER_SECONDS", 60.0)
    database, proxy = far_postgres
    with ckptstore.open(tmp_path / "store", catalog=database) as store:
        for step in range(3):
            store.commit({"model": {"weight": WEIGHT + step}}, step=step)
            assert store.latest() == step
    assert proxy.connections == 1
