"""The doctor finds what does not hold, touches nothing else, and leaves nothing behind."""

from __future__ import annotations

import sys
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ckptstore.errors import CatalogError, StorageFull
from ckptstore.storage import Storage, open_storage
from ckptstore.testing import doctor
from ckptstore.testing.doctor import examine

TOLERABLE = {"racing puts of one key", "readers never see a part"}


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert examine(tmp_path).ok
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_place_that_was_not_there_is_none_again(tmp_path):
    catalog = f"sqlite:///{tmp_path}/new/deep/catalog.sqlite"
    for left in [], ["mine"]:
        with doctor._Doctor(f"{tmp_path}/new/store/", catalog, None).room():
            for name in left:
                (tmp_path / "new" / name).touch()
        assert [path.name for path in tmp_path.glob("new/*")] == left
        assert (tmp_path / "new").exists() == bool(left)


def test_a_place_that_cannot_be_made_is_none_either(tmp_path, monkeypatch):
    def full(_: doctor._Doctor, name: str, *, create: bool = True) -> Storage:
        if create:
            (tmp_path / "new/store").mkdir(parents=True)
            raise StorageFull("no space")
        return open_storage(f"{tmp_path}/new/store/{name}", create=False)

    monkeypatch.setattr(doctor._Doctor, "_storage", full)
    with pytest.raises(StorageFull), doctor._Doctor(f"{tmp_path}/new/store", None, None).room():
        pass
    assert not (tmp_path / "new").exists()


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


def test_what_does_not_hold_is_reported(output, asked):
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    url = f"forgetful://{uuid.uuid4().hex}"
    text = output("doctor", url, code=1)
    assert "DOES NOT HOLD" in text and "a store is not safe there" in text
    answer = asked("doctor", url, code=1)
    assert not answer["ok"]
    broken = {finding["check"].partition(" (")[0] for finding in answer["findings"] if not finding["tolerated"]}
    assert {"round trip", "large object", "parts of every kind are joined"} <= broken
    assert "delete what is not there" in broken
    assert {finding["suite"] for finding in answer["findings"]} == {"storage"}


class Dying(MemoryFileSystem):  # type: ignore[misc]
    """Fails for good after some operations."""

    left = 0
    error: BaseException = OSError("the network is gone")

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("dying://"))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        Dying.left -= 1
        if Dying.left < 0:
            raise Dying.error
        super().pipe_file(path, value, mode, **kwargs)


@pytest.fixture
def dying():
    fsspec.register_implementation("dying", Dying, clobber=True)
    Dying.left = 3
    return f"dying://{uuid.uuid4().hex}"


def test_an_interrupted_one_says_nothing_good(dying, run, monkeypatch):
    monkeypatch.setattr(Dying, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        examine(dying)
    Dying.left = 3
    run("doctor", dying, code=130)


def test_options_of_pytest_in_the_environment_are_reported(dying, run, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert "PYTEST_ADDOPTS" in run("doctor", dying, code=1).stderr


def test_no_more_checks_fail_than_there_are(tmp_path, monkeypatch):
    original, seen = doctor._empty_catalog, []

    def sometimes(url):
        seen.append(url)
        if len(seen) > 2:
            raise CatalogError("the database is gone")
        return original(url)

    monkeypatch.setattr(doctor, "_empty_catalog", sometimes)
    found = examine(tmp_path)
    assert not found.ok
    assert 0 < len(found.findings) < found.checks


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
