"""Real servers, started once for each process that runs tests. In CI one that does not start is a failure."""

from __future__ import annotations

import functools
import gc
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

import ckptstore
from ckptstore.testing import servers
from ckptstore.testing.proxy import Proxy
from ckptstore.testing.servers import Bucket

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads, of several tests at a time, only wait for each other

settings.register_profile("patient", settings.default, deadline=None)  # the first example may import or compile
settings.load_profile("patient")

_MADE_ONCE = ("crew", "answers", "straight")
"""Fixtures that take long to make."""


def pytest_configure(config: pytest.Config) -> None:
    """What is compiled is kept for all processes of this run, and for no other."""
    if not hasattr(config, "workerinput"):
        cache = tempfile.TemporaryDirectory(prefix="ckptstore-tests-", ignore_cleanup_errors=True)
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = cache.name


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks at the marks in one of these hooks too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of the processes that run tests has all that need such a fixture."""
    for item in items:
        for name in _MADE_ONCE:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))


def pytest_collection_finish() -> None:
    """Exempt what was imported from Python's garbage collection, which took a sixth of the time of stores' tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ckptstore.Store]:
    """An empty store whose chunks are so small that tensors of the tests span several."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as opened:
        yield opened


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the shell that began the tests has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A URL of a Postgres server that does not flush: a power cut is not among the tests."""
    with _required("Postgres"), servers.postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url


@pytest.fixture
def databases(postgres_server: str) -> Callable[[], str]:
    """Gives URLs of empty databases, another one each time."""
    return lambda: servers.new_database(postgres_server)


@pytest.fixture
def postgres(databases: Callable[[], str]) -> str:
    """A URL of an empty database."""
    return databases()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """An S3 server with a bucket. What boto knows of S3 is read once, since that takes longer than a test."""
    with _required("S3"), pytest.MonkeyPatch.context() as patch:
        from botocore import session  # type: ignore[import-untyped]

        patch.setattr(session, "create_loader", functools.cache(session.create_loader))
        with servers.s3_server() as port:
            yield servers.s3_bucket(port)


@pytest.fixture
def s3(s3_server: Bucket) -> Bucket:
    """An empty place on an S3 server."""
    return Bucket(s3_server.below(uuid.uuid4().hex), s3_server.options)


@pytest.fixture
def far_s3(s3: Bucket) -> Iterator[tuple[Bucket, Proxy]]:
    """An empty place on an S3 server, through a network that can be made bad."""
    with Proxy(int(s3.options["client_kwargs"]["endpoint_url"].rpartition(":")[2])) as proxy:
        yield Bucket(s3.url, s3.options | {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}}), proxy


@pytest.fixture
def far_gcs(gcs: Bucket) -> Iterator[tuple[Bucket, Proxy]]:
    """An empty place on a GCS server, through a network that can be made bad."""
    with Proxy(int(gcs.options["endpoint_url"].rpartition(":")[2])) as proxy:
        yield Bucket(gcs.url, gcs.options | {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}), proxy


@pytest.fixture
def far_postgres(postgres: str) -> Iterator[tuple[str, Proxy]]:
    """A URL of an empty database, through a network that can be made bad."""
    import psycopg

    with psycopg.connect(postgres) as connection:
        folder, port = connection.info.host, connection.info.port
    with Proxy(f"{folder}/.s.PGSQL.{port}") as proxy:
        yield postgres.replace(f"?host={folder}", "").replace("@/", f"@127.0.0.1:{proxy.port}/"), proxy


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Bucket]:
    """A server of Google Cloud Storage with a bucket."""
    with _required("GCS"), servers.gcs_server() as bucket:
        yield bucket


@pytest.fixture
def gcs(gcs_server: Bucket) -> Bucket:
    """An empty place on a GCS server."""
    return Bucket(gcs_server.below(uuid.uuid4().hex), gcs_server.options)


@contextmanager
def _required(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, RuntimeError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no {name} server: {error}")
