from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckptstore.errors import InvalidArgument
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


def test_options_are_not_for_folders(tmp_path):
    with pytest.raises(InvalidArgument, match="storage_options"):
        open_storage(tmp_path, storage_options={"key": "x"})


def test_folder_needs_no_fsspec():
    script = "import sys, ckptstore.storage; sys.exit('fsspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
