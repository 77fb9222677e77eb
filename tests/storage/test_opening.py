from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.errors import InvalidArgument, StorageError
from ckptstore.storage import open_storage
from ckptstore.storage.local import LocalStorage


@pytest.mark.parametrize("form", [str, Path, lambda path: f"file://{path}", lambda path: path.as_uri()])
def test_folders(tmp_path, form):
    place = tmp_path / "a folder"
    storage = open_storage(form(place), create=True)
    assert isinstance(storage, LocalStorage)
    assert storage.root == place
    assert place.is_dir()


def test_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("./store").url == str(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_url_goes_to_fsspec():
    storage = open_storage("memory://somewhere", storage_options={"global_store": False})
    assert repr(storage) == "Retrying(FsspecStorage('memory://somewhere'))"
    storage.put("key", [b"x"])
    assert list(open_storage("memory://somewhere").list("")) == []


@pytest.mark.parametrize("url", ["", "file://", "file://relative"])
def test_no_place(url):
    with pytest.raises(InvalidArgument):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("gs:bucket", "gs://bucket"),
        ("file:/tmp/run", "file:///tmp/run"),
        ("HTTPS:host/run", "HTTPS://host/run"),
    ],
)
def test_a_url_without_its_slashes(url, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        open_storage(url, create=True)
    assert repr(meant) in str(caught.value)
    assert repr(str(tmp_path / url)) in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_folders_with_colons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("12:30:00", "c:run", "./s3:run"):
        open_storage(name, create=True)
    assert {path.name for path in tmp_path.iterdir()} == {"12:30:00", "c:run", "s3:run"}


@pytest.mark.parametrize("form", [str, Path])
def test_home(form, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert open_storage(form("~/run")).url == str(tmp_path / "home" / "run")
    assert open_storage(form(tmp_path / "~")).url == str(tmp_path / "~")


@pytest.mark.parametrize("url", ["a\0b", "file:///a%00b"])
def test_a_path_with_a_zero(url):
    with pytest.raises(InvalidArgument, match="zero byte"):
        open_storage(url, create=True)


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 2500], ids=["name", "path"])
def test_a_path_that_is_too_long(name, tmp_path):
    with pytest.raises(StorageError, match="name too long"):
        open_storage(tmp_path / name, create=True)


def test_options_are_not_for_folders(tmp_path):
    with pytest.raises(InvalidArgument, match="storage_options"):
        open_storage(tmp_path, storage_options={"key": "x"})


def test_folder_needs_no_fsspec():
    script = "import sys, ckptstore.storage; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
