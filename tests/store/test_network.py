"""Stores on servers behind a network that fails, and writers that were away for a while."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

import ckptstore
from ckptstore.catalog import waits
from ckptstore.catalog.opening import open_catalog
from ckptstore.testing.audit import (
    CHUNK_BYTES,
    Site,
    assert_exact,
    assert_nothing_leaked,
    assert_whole,
    expire_sessions,
    state_of,
)

SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
VERBS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
KEPT = {("main", 0), ("main", 1)}


class Far:
    """A store with two steps, seen through a proxy before its storage and one before its database."""

    def __init__(self, s3, postgres):
        (place, self.storage), (database, self.catalog) = s3, postgres
        self.site = Site(place.url, database, place.options)
        started(self.site)

    def calm(self):
        for proxy in (self.storage, self.catalog):
            proxy.held = False
            proxy.answer, proxy.lose_reply_to = lambda _: None, lambda _: False

    def assert_nothing_lost(self, live):
        self.calm()
        assert_as_it_should_be(self.site, live)


@pytest.fixture
def far(far_s3, far_postgres):
    return Far(far_s3, far_postgres)


def work(store):
    """Everything a day's work needs of both servers."""
    store.commit(state_of("main", 2), step=2)
    store.commit_async(state_of("main", 3), step=3).result()
    assert_exact(store, "main", 0)
    store.delete(2)
    store.gc(grace=0)
    assert store.verify().ok


def test_a_storm_of_refusals(far):
    chance, refused = random.Random(1), []

    def answer(data):
        if data.startswith(VERBS) and chance.random() < 0.3:
            refused.append(data)
            return SLOW_DOWN
        return None

    far.storage.answer = answer
    with far.site.open() as store:
        work(store)
    assert len(refused) > 10
    far.assert_nothing_lost({*KEPT, ("main", 3)})


def test_resets_of_the_storage(far):
    over = threading.Event()

    def reset():
        while not over.wait(0.05):
            far.storage.reset()

    resetting = threading.Thread(target=reset)
    resetting.start()
    try:
        with far.site.open() as store:
            work(store)
    finally:
        over.set()
        resetting.join()
    far.assert_nothing_lost({*KEPT, ("main", 3)})


def test_idle_connections_to_the_database_are_made_anew(far):
    with far.site.open() as store:
        work(store)
        far.catalog.reset()
        store.commit(state_of("main", 4), step=4)
        far.catalog.reset()
        assert store.steps() == [0, 1, 3, 4]
    far.assert_nothing_lost({*KEPT, ("main", 3), ("main", 4)})


def test_a_database_that_restarts(far):
    with far.site.open() as store:
        assert store.steps() == [0, 1]
        far.catalog.answer = lambda _: b""
        far.catalog.reset()
        healing = threading.Timer(1.5, far.calm)
        healing.start()
        store.commit(state_of("main", 2), step=2)
        healing.join()
    far.assert_nothing_lost({*KEPT, ("main", 2)})


@pytest.mark.parametrize("marker", [b"/packs/", b"/manifests/"])
def test_a_lost_reply_to_a_put(far, marker):
    lost = []

    def lose(data):
        if data.startswith(b"PUT ") and marker in data:
            lost.append(data)
        return bool(lost)

    far.storage.lose_reply_to = lose
    with far.site.open() as store:
        store.commit(state_of("main", 2), step=2)
    assert lost
    far.assert_nothing_lost({*KEPT, ("main", 2)})


def is_commit(data):
    return b"COMMIT" in data


def last_commit_of_a_commit(proxy):
    """Loses the reply to the COMMIT that makes a step exist, the first one behind the statement which stores it."""
    seen = {"manifest": False, "lost": False}

    def lose(data):
        seen["manifest"] |= b"INSERT INTO manifests" in data
        seen["lost"] |= seen["manifest"] and is_commit(data)
        return seen["lost"]

    proxy.lose_reply_to = lose
    return seen


def test_a_lost_reply_to_the_commit_itself(far):
    with far.site.open() as store:
        seen = last_commit_of_a_commit(far.catalog)
        made = store.commit(state_of("main", 2), step=2)
        assert seen["lost"]
        assert store.find(2) == made
        assert store.steps() == [0, 1, 2]
    far.assert_nothing_lost({*KEPT, ("main", 2)})


def test_a_lost_reply_and_a_database_that_stays_away(far, monkeypatch):
    monkeypatch.setattr("ckptstore.patience.PATIENCE", 1.0)
    with far.site.open() as store:
        seen = last_commit_of_a_commit(far.catalog)
        far.catalog.answer = lambda data: b"" if seen["lost"] and not is_commit(data) else None
        with pytest.raises(ckptstore.CatalogUnavailable, match="try again"):
            store.commit(state_of("main", 2), step=2)
        assert seen["lost"]
        far.calm()
        assert store.steps() == [0, 1, 2]
        store.commit(state_of("main", 2), step=2)
    far.assert_nothing_lost({*KEPT, ("main", 2)})


def test_any_reply_of_the_database_may_be_lost(far_postgres, tmp_path):
    """Either it does not show, or the error is of the tree and the same commit again is success."""
    database, proxy = far_postgres
    site = Site(str(tmp_path / "store"), database)
    shown = 0
    with site.open(chunk_bytes=CHUNK_BYTES) as store:
        for step in itertools.count(1):
            losing = LoseNth(step)
            proxy.lose_reply_to = losing
            try:
                store.commit(state_of("main", step), step=step)
            except ckptstore.CatalogUnavailable:
                shown += 1
                store.commit(state_of("main", step), step=step)
            if losing.seen < step:
                break
        proxy.lose_reply_to = lambda _: False
    assert 10 < step < 200  # more on a slow machine, which gives connections back in between
    assert 5 < shown < step - 5
    assert_as_it_should_be(site, {("main", done) for done in range(1, step + 1)})


class LoseNth:
    """Loses the reply to the nth message."""

    def __init__(self, n):
        self.n, self.seen = n, 0

    def __call__(self, _):
        self.seen += 1
        return self.seen == self.n


@pytest.mark.parametrize("side", ["storage", "catalog"])
@pytest.mark.parametrize("ends", ["heals", "breaks"])
def test_a_partition_in_the_middle_of_a_commit(far, side, ends):
    proxy = getattr(far, side)

    def heal():
        time.sleep(1)
        if ends == "breaks":
            proxy.reset()
        proxy.held = False

    healing = threading.Thread(target=heal)

    def cut(data):
        if not healing.ident and (b"PUT " in data or b"INSERT INTO packs" in data):
            proxy.held = True
            healing.start()

    with far.site.open() as store:
        proxy.answer = cut
        try:
            store.commit(state_of("main", 2), step=2)
        except ckptstore.CatalogUnavailable:
            assert (side, ends) == ("catalog", "breaks")
            store.commit(state_of("main", 2), step=2)
        healing.join()
    far.assert_nothing_lost({*KEPT, ("main", 2)})


def test_a_database_that_never_answered_is_not_waited_for():
    begun = time.monotonic()
    with pytest.raises(ckptstore.CatalogUnavailable, match=r"refused.*try again"):
        ckptstore.open(f"memory://{uuid.uuid4().hex}", catalog="postgresql://user@127.0.0.1:1/none")
    assert time.monotonic() - begun < 20


def test_a_writer_that_sleeps_on_the_lock_is_cut_off(postgres, monkeypatch):
    monkeypatch.setattr(waits, "IDLE_SECONDS", 0.5)
    with (
        closing(open_catalog(postgres, create=True)) as sleeper,
        closing(open_catalog(postgres, create=False)) as other,
    ):
        with pytest.raises(ckptstore.CatalogUnavailable, match="idle"), sleeper._database.write() as connection:
            time.sleep(1.5)
            other.open_session(60)
            connection.exec_driver_sql("SELECT 1")
        sleeper.open_session(60)


# paused writers


def started(site):
    with site.open(chunk_bytes=CHUNK_BYTES) as store:
        for step in range(2):
            store.commit(state_of("main", step), step=step)
    return site


@pytest.mark.parametrize(("n", "after"), [(1, True), (2, False), (2, True)])
def test_a_writer_that_was_paused_and_fenced(tmp_path, n, after):
    fence_and_wake(started(Site(str(tmp_path / "store"))), n, after)


def test_a_writer_on_servers_that_was_paused_and_fenced(s3, postgres):
    fence_and_wake(started(Site(s3.url, postgres, s3.options)), 1, after=False)


def fence_and_wake(site, n, after):
    child = paused(site, n, after)
    expire_sessions(site)
    with site.open() as store:
        assert store.gc(grace=0).fenced == 1
        store.commit(state_of("main", 2), step=2)
    assert woken(child) == "SessionFenced"
    assert_as_it_should_be(site, {*KEPT, ("main", 2)})


def test_a_writer_that_was_paused_and_not_missed(tmp_path):
    site = started(Site(str(tmp_path / "store")))
    child = paused(site, 1, after=True)
    with site.open() as store:
        assert store.gc(grace=0).fenced == 0
    assert woken(child) == "committed"
    assert_as_it_should_be(site, {*KEPT, ("main", 7)})


def assert_as_it_should_be(site, live):
    assert assert_whole(site) == live
    assert_nothing_leaked(site)
    assert assert_whole(site) == live


def paused(site, n, after):
    """A process that stopped before, or after, its nth put."""
    script = Path(__file__).with_name("paused_child.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    order = json.dumps([asdict(site), n, after])
    child = subprocess.Popen([sys.executable, script, order], env=environment, stdout=subprocess.PIPE, text=True)
    stopped = os.waitpid(child.pid, os.WUNTRACED)[1]
    assert os.WIFSTOPPED(stopped), f"it ended, with {stopped}"
    return child


def woken(child):
    os.kill(child.pid, signal.SIGCONT)
    output, _ = child.communicate(timeout=60)
    return output.strip()
