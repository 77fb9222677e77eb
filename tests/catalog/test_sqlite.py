from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine.default import DefaultExecutionContext

import ckptstore
from ckptstore import errors
from ckptstore.catalog import sqlite, waits
from ckptstore.catalog.driver_errors import translated
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.catalog.records import NewPack
from ckptstore.catalog.reserve import Reserve
from ckptstore.testing.catalog_making import LEASE, begin, collect, digest, make, new_commit, new_pack

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_addresses_that_can_not_work(url):
    with pytest.raises(errors.InvalidArgument, match="sqlite:///path"):
        open_catalog(url, create=True)


def test_a_missing_file_is_named_and_not_made(path, url):
    with pytest.raises(errors.CatalogError, match=str(path)):
        open_catalog(url, create=False)
    assert not path.exists()


def test_an_empty_file_is_no_catalog(path, url):
    path.touch()
    with pytest.raises(errors.CatalogError, match="holds no catalog"):
        open_catalog(url, create=False)
    assert open_catalog(url, create=True).runs() == []


def test_missing_folders_are_made(tmp_path):
    path = tmp_path / "a/b %20?#é" / "catalog.sqlite"
    assert open_catalog(sqlite_url(path), create=True).runs() == []
    assert path.is_file()


def test_a_damaged_file_is_named(path, url):
    path.write_bytes(b"this is not a database file" * 100)
    for create in (False, True):
        with pytest.raises(errors.CatalogError, match=str(path)):
            open_catalog(url, create=create)
    assert path.read_bytes().startswith(b"this is not")


def test_a_foreign_database_is_left_alone(path, url):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE songs (title)")
    other.close()
    with pytest.raises(errors.CatalogError, match="something else"):
        open_catalog(url, create=True)


@pytest.mark.parametrize("index", ["ix_chunks_pack", "ix_packs_state", "ix_commits_live", "ix_commit_packs_pack"])
def test_check_finds_a_broken_page(path, url, index):
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(0, [new_pack(*(f"chunk {i}" for i in range(1000)))]))
    assert catalog.check() == catalog.damage(chunks=True) == []
    catalog.close()
    raw = sqlite3.connect(path)
    root = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [index]).fetchone()[0]
    raw.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096 + 8)
        file.write(b"\xff" * 64)
    assert catalog.check()
    assert catalog.damage(chunks=True)
    assert bool(catalog.damage(chunks=False)) is (index != "ix_chunks_pack")


def test_check_finds_a_commit_without_its_pack(path, url):
    catalog = open_catalog(url, create=True)
    pack = new_pack("a")
    made = make(catalog, new_commit(0, [pack]))
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE packs SET state = 'condemned'")
    raw.close()
    assert catalog.check() == [f"commit {made.id} needs the pack {pack.name}, which is condemned"]


def test_a_held_lock_is_busy_in_the_end(path, url, monkeypatch):
    monkeypatch.setattr(waits, "BUSY_SECONDS", 0.05)
    catalog = open_catalog(url, create=True)
    made = make(catalog, new_commit(0))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.CatalogBusy, match=str(path)):
        catalog.open_session(LEASE)
    assert catalog.commits() == [made]
    holder.close()
    assert catalog.open_session(LEASE)


def test_a_full_disk_changes_nothing(url, monkeypatch):
    catalog = open_catalog(url, create=True)
    made = make(catalog, new_commit(0))
    session = begin(catalog, new := new_commit(1, [new_pack(*(f"chunk {i}" for i in range(5000)))]))
    catalog.close()
    connect = sqlite.connect_sqlite

    def full(*args):
        connection = connect(*args)
        connection.execute("PRAGMA max_page_count = 60")
        return connection

    monkeypatch.setattr(sqlite, "connect_sqlite", full)
    with pytest.raises(errors.StorageFull, match="nothing was changed"):
        catalog.commit(session, new)
    assert catalog.commits() == [made]
    monkeypatch.undo()
    catalog.close()
    assert catalog.commit(session, new).id == new.id


READ_ONLY = """
import os, sys
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import StorageReadOnly
os.setuid(65534) if os.getuid() == 0 else None
catalog = open_catalog(sys.argv[1], create=True)
print(catalog.steps("main"), catalog.find("main", "latest").step)
try:
    catalog.open_session(1)
except StorageReadOnly as error:
    print("refused")
"""


@pytest.mark.parametrize("writer_is_there", [False, True])
def test_a_read_only_folder_can_be_read(tmp_path, writer_is_there):
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    store = tmp_path / "store"
    url = f"sqlite:///{store}/catalog.sqlite"
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(7))
    if not writer_is_there:
        catalog.close()
    store.chmod(0o555)
    for file in store.iterdir():
        file.chmod(0o444)
    command = [sys.executable, "-c", READ_ONLY, url]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    store.chmod(0o755)
    assert done.stdout.split("\n")[:2] == ["[7] 7", "refused"], done.stderr


UNREADABLE = """
import os, sys, time
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import CatalogError
os.setuid(65534) if os.getuid() == 0 else None
begun = time.monotonic()
try:
    open_catalog(sys.argv[1], create=True)
except CatalogError as error:
    print(error, time.monotonic() - begun < longest_wait, sep="\\n")
"""


def test_a_catalog_that_may_not_be_read_is_not_waited_for(tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    url = f"sqlite:///{tmp_path}/catalog.sqlite"
    open_catalog(url, create=True).close()
    (tmp_path / "catalog.sqlite").chmod(0)
    program = UNREADABLE.replace("longest_wait", str(sqlite._COMING_SECONDS / 2))
    command = [sys.executable, "-c", program, url]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    message, soon = done.stdout.splitlines()
    assert message.startswith(f"the catalog {tmp_path}/catalog.sqlite may not be read") and soon == "True", done.stderr


def open_and_commit(url, first):
    catalog = open_catalog(url, create=True)
    for step in range(first, first + 10):
        make(catalog, new_commit(step, [new_pack(f"chunk {step}")]))
        collect(catalog)


def test_processes_open_and_commit_at_once(url):
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=open_and_commit, args=(url, first)) for first in (0, 10, 20, 30)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    catalog = open_catalog(url, create=False)
    assert catalog.steps("main") == list(range(40))
    assert catalog.check() == []


def test_a_forked_child_has_its_own_connections(url):
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(0))
    child = os.fork()
    if child == 0:
        try:
            make(catalog, new_commit(1))
            os._exit(0)
        finally:
            os._exit(1)
    make(catalog, new_commit(2))
    assert os.waitpid(child, 0)[1] == 0
    assert catalog.steps("main") == [0, 1, 2]
    assert catalog.check() == []


def test_the_last_deletion_is_taken_back_whatever_the_clock_says(url):
    catalog = open_catalog(url, create=True)
    for content, deleted in (("first", 200.0), ("second", 100.0)):
        made = make(catalog, new_commit(0, content=content))
        catalog.delete([made])
        with catalog._database.write() as connection:
            connection.exec_driver_sql(f"UPDATE commits SET deleted = {deleted} WHERE id = '{made.id}'")
    assert catalog.restore("main", 0).content == digest("second")


def test_who_may_only_read_is_not_disturbed_by_writers_that_come_and_go(url, path, monkeypatch):
    make(open_catalog(url, create=True), new_commit(0))
    monkeypatch.setattr(sqlite, "_writable", lambda _: False)
    reader = open_catalog(url, create=False)
    real, seen = sqlite.connect_sqlite, []

    def while_a_writer_goes(path, mode):
        seen.append(mode)
        if len(seen) < 4:
            raise error_of(sqlite3.SQLITE_READONLY if len(seen) % 2 else sqlite3.SQLITE_CANTOPEN)
        return real(path, mode)

    monkeypatch.setattr(sqlite, "connect_sqlite", while_a_writer_goes)
    assert reader.steps("main") == [0]
    assert len(seen) == 4


def error_of(code):
    error = sqlite3.OperationalError("told by SQLite")
    error.sqlite_errorcode = code
    return error


def test_postgres_that_recovers_is_no_answer():
    for message in ("the database system is not yet accepting connections", "the database system is starting up"):
        assert isinstance(translated(Exception(f"FATAL:  {message}"), "x"), errors.CatalogUnavailable)


def test_a_child_forked_amid_a_transaction_can_make_its_own(url):
    catalog, database = open_catalog(url, create=True), Database(url)
    within = threading.Event()

    def write():
        with database.write():
            within.set()
            time.sleep(0.3)

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        assert within.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # SQLite itself would wait for 30 s for a thread that is not there
            try:
                make(catalog, new_commit(0))
                os._exit(0)
            finally:
                os._exit(1)
        writing.result()
        assert os.waitpid(child, 0)[1] == 0
    assert catalog.steps("main") == [0]


def test_what_a_child_commits_is_there_when_its_parent_closes_first(url):
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(0))
    (resume, go_on), (listen, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            make(catalog, new_commit(1))
            os.write(answer, b"1")
            os.read(resume, 1)
            make(catalog, new_commit(2))
            os._exit(0)  # without closing, as one that is killed
        finally:
            os._exit(1)
    assert os.read(listen, 1) == b"1"
    catalog.close()
    os.write(go_on, b"1")
    assert os.waitpid(child, 0)[1] == 0
    assert open_catalog(url, create=False).steps("main") == [0, 1, 2]


def test_the_file_stays_the_one_that_was_named(tmp_path, monkeypatch):
    """Some trainings change their folder, in which there may be another catalog of that name."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    open_catalog("sqlite:///catalog.sqlite", create=True).close()
    monkeypatch.chdir(tmp_path)
    catalog = open_catalog("sqlite:///catalog.sqlite", create=True)
    monkeypatch.chdir(other)
    catalog.close()
    make(catalog, new_commit(7, [new_pack("a")]))
    make(pickle.loads(pickle.dumps(catalog)), new_commit(8, [new_pack("b")]))
    assert open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite", create=False).steps("main") == [7, 8]
    assert open_catalog("sqlite:///catalog.sqlite", create=False).runs() == []


def test_no_password_is_shown():
    database = Database("postgresql://me:secret@host/db")
    assert "secret" not in database.url
    assert "secret" in pickle.loads(pickle.dumps(database)).parsed.password


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """2,000 commits of 10 packs and 100,000 chunks."""
    path = tmp_path_factory.mktemp("big") / "catalog.sqlite"
    catalog = open_catalog(f"sqlite:///{path}", create=True)
    shared = [new_pack(*(f"{i}-{j}" for j in range(10_000))) for i in range(10)]
    make(catalog, new_commit(0, shared))
    catalog.close()
    with sqlite3.connect(path) as raw:
        raw.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) INSERT INTO commits "
            "SELECT key + i, printf('%032x', i), run, i, parent, created, deleted, metadata, content, document,"
            " leaves, logical_bytes, new_bytes FROM commits, n WHERE step = 0"
        )
        raw.execute("INSERT INTO manifests SELECT key, zeroblob(20000) FROM commits WHERE step > 0")
        raw.execute("INSERT INTO commit_packs SELECT c.key, p.key, 0 FROM commits c, packs p WHERE c.step > 0")
    raw.close()
    return catalog


@pytest.mark.parametrize("method", ["find", "newest", "steps", "commits", "locate", "manifest", "by_id"])
def test_reading_uses_indexes(big, method):
    with big._database.read() as db:
        raw = db.connection.dbapi_connection

    def explain(statement):
        if statement.startswith(("SELECT", "WITH")):
            seen.append(statement)

    seen: list[str] = []
    raw.set_trace_callback(explain)
    of_run = {"find": ("main", 7), "newest": ("main", 7), "steps": ("main",), "commits": ("main",)}
    arguments = of_run | {"locate": ([digest(f"1-{number}") for number in range(20)],)}
    getattr(big, method)(*arguments.get(method, ("0" * 31 + "7",)))
    raw.set_trace_callback(None)
    plans = [row[3] for statement in seen for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert seen
    assert not [plan for plan in plans if plan.startswith("SCAN") and "tags" not in plan], plans
    assert not [plan for plan in plans if "ix_packs_state" in plan], "it begins at all live packs"
    if method == "commits":
        assert not [plan for plan in plans if "manifests" in plan]


def test_pack_of_no_chunks(url):
    catalog = open_catalog(url, create=True)
    make(catalog, new_commit(0, [NewPack("0" * 32, 10, [])]))
    assert catalog.stats().chunks == 0


def test_a_store_that_is_dropped_leaves_no_connection_open(tmp_path, monkeypatch):
    """Python 3.13 warns of one that is left to the garbage collector."""
    opened: list[Any] = []
    closed: list[sqlite3.Connection] = []

    class Recorded(sqlite3.Connection):
        def close(self):
            closed.append(self)
            super().close()

    def connect(*given, **named):
        opened.append(given)
        return real(*given, **named, factory=Recorded)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    for read_only in (False, True):
        store = ckptstore.open(tmp_path / "store", read_only=read_only)
        store.steps()
        del store
        gc.collect()
        assert len(closed) == len(opened) > 0


def test_a_copied_file_is_a_whole_catalog(url, tmp_path):
    catalog = open_catalog(url, create=True)
    made = make(catalog, new_commit(0))
    catalog.close()
    shutil.copy(tmp_path / "catalog.sqlite", tmp_path / "copy.sqlite")
    assert open_catalog(f"sqlite:///{tmp_path}/copy.sqlite", create=False).commits() == [made]


def test_what_a_signals_handler_raises_is_raised(url, monkeypatch):
    catalog = open_catalog(url, create=True)

    def interrupted(*_, **__):
        raise KeyError("odd")

    monkeypatch.setattr(DefaultExecutionContext, "_init_compiled", interrupted)
    with pytest.raises(KeyError, match="odd"):
        catalog.runs()


@pytest.mark.parametrize("catalog", [0, 1 << 20, 40 << 20, 1 << 40])
def test_how_much_of_the_disk_is_reserved(tmp_path, catalog):
    file, reserve = tmp_path / "catalog.sqlite", tmp_path / "catalog.sqlite-reserve"
    file.touch()
    os.truncate(file, catalog)
    needed = min(catalog + (256 << 10), 64 << 20)
    wanted = min(needed * 5 // 4, 64 << 20)
    Reserve(str(file)).fill()
    assert reserve.stat().st_size == wanted
    assert reserve.stat().st_blocks * 512 >= wanted
    for left, after in ((needed, needed), (needed - 1, wanted), (wanted // 2, wanted)):
        os.truncate(reserve, left)
        Reserve(str(file)).fill()
        assert reserve.stat().st_size == after


def test_the_reserve_gives_way_to_its_end(tmp_path):
    reserve, file = Reserve(str(tmp_path / "catalog.sqlite")), tmp_path / "catalog.sqlite-reserve"
    file.write_bytes(bytes(1 << 20))
    left = []
    while reserve.give_way():
        left.append(file.stat().st_size if file.exists() else 0)
    assert left == [2**power for power in range(19, 13, -1)] + [0]
    assert not reserve.give_way()


def test_the_reserve_of_somebody_else_gives_way_whole(tmp_path, monkeypatch):
    reserve, file = Reserve(str(tmp_path / "catalog.sqlite")), tmp_path / "catalog.sqlite-reserve"
    file.write_bytes(bytes(1 << 20))

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "truncate", refused)
    assert reserve.give_way() and not file.exists()


def test_who_shares_a_catalog_may_use_its_reserve(url, path, tmp_path):
    open_catalog(url, create=True).close()
    path.chmod(0o660)
    (tmp_path / "catalog.sqlite-reserve").unlink()
    open_catalog(url, create=False).close()
    assert (tmp_path / "catalog.sqlite-reserve").stat().st_mode & 0o777 == 0o660


def test_the_reserve_lies_beside_the_file_that_a_link_leads_to(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "catalog.sqlite").symlink_to(tmp_path / "far" / "real.sqlite")
    open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite", create=True).close()
    assert (tmp_path / "far" / "real.sqlite-reserve").stat().st_size > 256 << 10
    assert sorted(os.listdir(tmp_path)) == ["catalog.sqlite", "far"]


@pytest.mark.parametrize("kind", ["link", "circle", "folder", "pipe"])
def test_what_is_no_reserve_is_left_alone(url, tmp_path, kind):
    place, other = tmp_path / "catalog.sqlite-reserve", tmp_path / "other"
    other.write_bytes(bytes(1 << 20))
    {
        "link": lambda: place.symlink_to(other),
        "circle": lambda: place.symlink_to(place),
        "folder": place.mkdir,
        "pipe": lambda: os.mkfifo(place),
    }[kind]()
    open_catalog(url, create=True).close()
    assert not Reserve(str(tmp_path / "catalog.sqlite")).give_way()
    assert os.path.lexists(place) and other.stat().st_size == 1 << 20


def test_who_only_reads_reserves_nothing(url, tmp_path):
    open_catalog(url, create=True).close()
    (tmp_path / "catalog.sqlite-reserve").unlink()
    with closing(open_catalog(url, create=False, refusal="only read")) as catalog:
        assert catalog.runs() == []
    assert not (tmp_path / "catalog.sqlite-reserve").exists()


def test_two_who_open_at_once_reserve_no_more(url, tmp_path, monkeypatch):
    open_catalog(url, create=True).close()
    place, file = tmp_path / "catalog.sqlite-reserve", str(tmp_path / "catalog.sqlite")
    place.unlink()
    monkeypatch.setattr(Reserve, "_size", lambda _: 0)  # neither sees the other
    for _ in range(2):
        Reserve(file).fill()
    assert place.stat().st_size == (os.stat(file).st_size + (256 << 10)) * 5 // 4


def test_a_reserve_that_gives_way_while_it_is_filled_has_no_hole(url, tmp_path, monkeypatch):
    open_catalog(url, create=True).close()
    place = tmp_path / "catalog.sqlite-reserve"
    os.truncate(place, 100 << 10)
    real = Reserve._size

    def and_then_it_is_gone(reserve):
        size = real(reserve)
        place.unlink(missing_ok=True)
        return size

    monkeypatch.setattr(Reserve, "_size", and_then_it_is_gone)
    Reserve(str(tmp_path / "catalog.sqlite")).fill()
    status = place.stat()
    assert status.st_blocks * 512 >= status.st_size > 256 << 10
