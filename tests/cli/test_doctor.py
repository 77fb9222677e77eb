"""The doctor finds what does not hold, touches nothing else, and leaves nothing behind."""

from __future__ import annotations

import sys
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ckptstore.testing.doctor import examine

TOLERABLE = {"racing puts of one key", "readers never see a part"}


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert examine(tmp_path).ok
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_bucket_and_postgres(s3, postgres, asked, monkeypatch):
    endpoint = s3.options["client_kwargs"]["endpoint_url"]
    for name, value in (("ENDPOINT_URL", endpoint), ("ACCESS_KEY_ID", s3.options["key"])):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    answer = asked("doctor", s3.url, "--catalog", postgres)
    assert answer["ok"]
    assert {finding["check"] for finding in answer["findings"]} <= TOLERABLE
    assert all(finding["tolerated"] for finding in answer["findings"])
    assert answer["checks"] > 100
    files = fsspec.filesystem("s3", **s3.options).find(s3.url.removeprefix("s3://"))
    assert files == []
    import psycopg

    with psycopg.connect(postgres) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ckptstore%'").fetchall()
    assert found == []


class Forgetful(MemoryFileSystem):  # type: ignore[misc]
    """Loses an object's last byte."""

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("forgetful://"))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value[:-1], mode, **kwargs)


def test_what_does_not_hold_is_told(told, asked):
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    url = f"forgetful://{uuid.uuid4().hex}"
    text = told("doctor", url, code=1)
    assert "DOES NOT HOLD" in text and "a store is not safe there" in text
    answer = asked("doctor", url, code=1)
    assert not answer["ok"]
    broken = {finding["check"].partition(" (")[0] for finding in answer["findings"] if not finding["tolerated"]}
    assert {"round trip", "large object", "parts of every kind are joined"} <= broken
    assert "delete what is not there" in broken
    assert {finding["suite"] for finding in answer["findings"]} == {"storage"}


def test_what_cannot_be_opened_is_an_error(tmp_path, run):
    (tmp_path / "file").write_text("")
    assert "error:" in run("doctor", tmp_path / "file" / "below", code=1).stderr
    assert "error:" in run("doctor", tmp_path, "--catalog", "mysql://nowhere/db", code=1).stderr
    assert "unknown://" in run("doctor", "unknown://x", code=1).stderr


def test_it_says_which_package_it_needs(run, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ckptstore.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert 'pip install "ckptstore[doctor]"' in run("doctor", tmp_path, code=1).stderr
