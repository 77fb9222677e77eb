"""What the environment says of a store's place is for the stores that it can mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptstore

CATALOG, OPTIONS = "CKPTSTORE_CATALOG", "CKPTSTORE_STORAGE_OPTIONS"


@pytest.fixture
def elsewhere(url, run, monkeypatch):
    """The catalog of another store, which the environment names."""
    run("init", "other", "--catalog", "sqlite:///other.sqlite")
    monkeypatch.setenv(CATALOG, "sqlite:///other.sqlite")
    return "sqlite:///other.sqlite"


def test_a_folder_that_has_its_catalog_needs_none_from_the_environment(url, elsewhere, asked, run):
    assert asked("steps", url) == [0, 100, 200]
    run("tag", url, "last", "200")
    assert asked("verify", f"file://{Path(url).absolute()}")["ok"]
    assert "is of another store" in run("steps", url, "--catalog", elsewhere, code=1).stderr
    with ckptstore.open(url) as store:
        assert store.tags() == {"best": 100, "last": 200}


def test_a_folder_without_its_catalog_takes_that_of_the_environment(url, asked, monkeypatch):
    Path(url, "catalog.sqlite").rename("moved.sqlite")
    monkeypatch.setenv(CATALOG, "sqlite:///moved.sqlite")
    assert asked("steps", url) == [0, 100, 200]


@pytest.mark.parametrize("command", ["steps", "migrate", "rebuild", "verify"])
def test_an_error_of_the_catalog_names_the_variable(url, elsewhere, run, command, monkeypatch):
    Path(url, "catalog.sqlite").unlink()
    if command == "migrate":
        monkeypatch.setenv(CATALOG, "sqlite:///nowhere.sqlite")
    assert f"{CATALOG} names that catalog" in run(command, url, code=1).stderr
    assert CATALOG not in run("steps", url, "--catalog", elsewhere, code=1).stderr


def test_init_leaves_nothing_where_the_catalog_is_of_another_store(elsewhere, run, tmp_path):
    for options in ((), ("--catalog", elsewhere)):
        stderr = run("init", "new", *options, code=1).stderr
        assert "is of another store" in stderr and (f"{CATALOG} names" in stderr) == (not options)
        assert not (tmp_path / "new").exists()


def test_init_tells_when_the_catalog_is_elsewhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CATALOG, "sqlite:///elsewhere.sqlite")
    assert f"with the catalog that {CATALOG} names" in run("init", "new").stdout
    with ckptstore.open("new", catalog="sqlite:///elsewhere.sqlite") as store:
        store.commit({"a": 1}, step=1)
    monkeypatch.delenv(CATALOG)
    assert "if its catalog lies elsewhere, give catalog= (--catalog)" in run("log", "new", code=1).stderr
    assert CATALOG not in run("init", "another").stdout


def test_no_second_catalog_is_made_beside_a_folders_own(url, run):
    stderr = run("rebuild", url, "--catalog", "sqlite:///second.sqlite", code=1).stderr
    assert "has a catalog of its own" in stderr and "move" in stderr
    assert not Path("second.sqlite").exists()
    stderr = run("steps", url, "--catalog", "sqlite:///second.sqlite", code=1).stderr
    assert "has a catalog of its own" in stderr and "leave out catalog= (--catalog)" in stderr
    Path(url, "catalog.sqlite").rename("catalog.old")
    run("rebuild", url, "--catalog", "sqlite:///second.sqlite")


def test_a_folder_needs_no_storage_options_from_the_environment(url, asked, run, monkeypatch):
    for value in ('{"secret": "hunter2"}', "no json"):
        monkeypatch.setenv(OPTIONS, value)
        assert asked("steps", url) == [0, 100, 200]
        run("init", f"file://{Path.cwd()}/{len(value)}")
    assert OPTIONS in run("steps", "s3://bucket/none", code=2).stderr


def test_a_target_or_source_that_is_the_only_url_takes_them(url, s3, asked, run, monkeypatch):
    monkeypatch.setenv(CATALOG, "sqlite:///bucket.sqlite")
    monkeypatch.setenv(OPTIONS, json.dumps(s3.options))
    run("init", s3.url)
    assert [made["step"] for made in asked("push", url, s3.url)] == [0, 100, 200]
    assert asked("steps", s3.url) == [0, 100, 200]
    assert [made["step"] for made in asked("push", s3.url, url, "100", "--target-run", "again")] == [100]
    for path in Path(url).glob("packs/*/*.pack"):
        path.unlink()
    assert asked("repair", url, "--source", s3.url, "--yes")["report"]["lost"] == []


def test_what_the_store_takes_is_not_for_the_target(url, s3, run, monkeypatch):
    monkeypatch.setenv(CATALOG, "sqlite:///bucket.sqlite")
    monkeypatch.setenv(OPTIONS, json.dumps(s3.options))
    run("init", s3.url)
    run("push", url, s3.url, "100")
    stderr = run("push", s3.url, s3.below("none"), code=1).stderr
    assert CATALOG not in stderr
    run("init", s3.below("other"), "--catalog", "sqlite:///other.sqlite")
    monkeypatch.setenv(CATALOG, "sqlite:///other.sqlite")
    beside = ("--catalog", "sqlite:///bucket.sqlite", "--target-storage-options", json.dumps(s3.options))
    assert "was opened without its catalog" in run("push", s3.url, s3.below("other"), *beside, code=1).stderr


def test_what_names_a_catalog_is_not_for_a_target_that_is_a_folder(url, run, monkeypatch):
    run("init", "there", "--catalog", "sqlite:///there.sqlite")
    monkeypatch.setenv(CATALOG, "sqlite:///there.sqlite")
    assert "catalog.sqlite is not there" in run("push", url, "there", code=1).stderr
    run("push", url, "there", "--target-catalog", "sqlite:///there.sqlite")


def test_what_names_the_catalog_of_a_folder_is_not_for_the_target(url, s3, run, monkeypatch):
    beside = ("--target-catalog", "sqlite:///bucket.sqlite")
    run("init", s3.url, "--catalog", beside[1], "--storage-options", json.dumps(s3.options))
    Path(url, "catalog.sqlite").rename("moved.sqlite")
    monkeypatch.setenv(CATALOG, "sqlite:///moved.sqlite")
    monkeypatch.setenv(OPTIONS, json.dumps(s3.options))
    stderr = run("push", url, s3.url, code=1).stderr
    assert "was opened without its catalog" in stderr and CATALOG not in stderr
    run("push", url, s3.url, *beside)
