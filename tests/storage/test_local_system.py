"""What only a real kernel can answer: killed writers, full disks, folders without the right to write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.errors import StorageFull, StorageReadOnly
from ckptstore.storage.local import LocalStorage
from ckptstore.testing.storage import keys

NOBODY = 65534


def child(script, *args):
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})


@pytest.mark.crash
@pytest.mark.parametrize("call", ["writev", "fsync", "link"])
def test_killed_writer_leaves_no_visible_object(tmp_path, call):
    script = """
import os, sys, time
from pathlib import Path
from ckptstore.storage.local import LocalStorage
storage = LocalStorage(Path(sys.argv[1]), create=True)
storage.put("packs/old", [b"old"])
def stop(*_):
    print("stopped", flush=True)
    time.sleep(60)
setattr(os, sys.argv[2], stop)
storage.put("packs/new", [b"new" * 1000])
"""
    with child(script, tmp_path, call) as writer:
        assert writer.stdout.readline() == "stopped\n"
        writer.send_signal(signal.SIGKILL)
    storage = LocalStorage(tmp_path)
    assert keys(storage) == {"packs/old"}
    assert len(os.listdir(tmp_path / "packs")) == 2
    assert storage.sweep_temporary("packs/", -1) == 1
    storage.put("packs/new", [b"new"])
    assert sorted(os.listdir(tmp_path / "packs")) == ["new", "old"]


def test_file_size_limit_counts_as_full(tmp_path):
    script = """
import resource, sys
from pathlib import Path
from ckptstore.errors import StorageFull
from ckptstore.storage.local import LocalStorage
storage = LocalStorage(Path(sys.argv[1]), create=True)
storage.put("small", [b"x" * 1000])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    storage.put("large", [b"x" * 60_000] * 3)
except StorageFull as error:
    print(error)
"""
    with child(script, tmp_path) as writer:
        output = writer.stdout.read()
    assert str(tmp_path / "large") in output
    assert os.listdir(tmp_path) == ["small"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_full_disk(small_disk):
    storage = LocalStorage(small_disk)
    storage.put("packs/first", [b"x" * 600_000])
    with pytest.raises(StorageFull, match=r"packs/second: No space left"):
        storage.put("packs/second", [b"y" * 100_000] * 10)
    assert os.listdir(small_disk / "packs") == ["first"]
    assert storage.get("packs/first") == b"x" * 600_000
    storage.delete("packs/first")
    storage.put("packs/second", [b"y" * 100_000] * 8)


@pytest.fixture
def as_nobody():
    """Root may write everywhere, so give that up for the test."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def mounted(tmp_path):
    """A folder with what mkfs makes in every file system's root: a folder that is nobody's business."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "lost+found").mkdir(mode=0)
        if not os.geteuid():
            os.chown(root, NOBODY, NOBODY)
        yield root
        (root / "lost+found").chmod(0o700)


def test_a_store_in_the_root_of_a_file_system(mounted, as_nobody):
    with ckptstore.open(mounted) as store:
        for step in range(3):
            store.commit({"w": torch.randn(1000)}, step=step)
        for leftover in ("packs/.writing-1", "manifests/.writing-1", ".writing-1"):
            (mounted / leftover).write_bytes(b"part")
            os.utime(mounted / leftover, (0, 0))
        report = store.gc(ckptstore.KeepLast(1), grace=0)
        assert (report.deleted, report.unfinished) == ((0, 1), 3)
        assert store.verify().ok


@pytest.fixture
def read_only_store():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        LocalStorage(root).put("packs/old", [b"old"])
        for folder in (root, root / "packs"):
            folder.chmod(0o555)
        yield LocalStorage(root)
        for folder in (root, root / "packs"):
            folder.chmod(0o755)


def test_read_only_folder(read_only_store, as_nobody):
    for key in ("packs/new", "new", "folder/new"):
        with pytest.raises(StorageReadOnly, match=f"{key}: Permission denied"):
            read_only_store.put(key, [b"x"])
    with pytest.raises(StorageReadOnly, match="packs/old"):
        read_only_store.delete("packs/old")
    with pytest.raises(StorageReadOnly, match="below"):
        LocalStorage(read_only_store.root / "below", create=True)
    assert read_only_store.get("packs/old") == b"old"
    assert keys(read_only_store) == {"packs/old"}
