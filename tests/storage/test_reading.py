"""Places that can only be read: web servers, and file systems on which fsspec may leave half an object."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest

import ckptstore
from ckptstore.errors import CorruptData, ObjectNotFound, StorageReadOnly, StorageUnavailable
from ckptstore.storage import RangeRead, open_storage
from ckptstore.storage.failures import without_password
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.remote import FsspecStorage
from ckptstore.testing.audit import CHUNK_BYTES, assert_exact, state_of
from ckptstore.testing.proxy import Proxy
from ckptstore.testing.storage import DATA, keys, read

RUN = "exp/7 100%"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Plain(SimpleHTTPRequestHandler):
    """Python's own, which does not know ranges."""

    def log_message(self, *_):
        pass


class Ranging(Plain):
    """Serves ranges, as most web servers do, and offers its folders in other orders."""

    def do_GET(self):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not wanted or not path.is_file():
            super().do_GET()
            return
        size, start, last = path.stat().st_size, int(wanted[1]), int(wanted[2])
        if start >= size:
            self.send_error(416)
            return
        data = path.read_bytes()[start : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{size}")
        self.end_headers()
        self.wfile.write(data)


class Sorting(Ranging):
    """Offers its folders in other orders, too."""

    def list_directory(self, path):
        page = b'<ul><li><a href="?C=N;O=D">Name</a></li><li><a href="../">Up</a></li>'
        for entry in sorted(Path(path).iterdir()):
            name = quote(f"{entry.name}/" if entry.is_dir() else entry.name)
            page += f'<li><a href="{name}">{name}</a></li>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return BytesIO(page)


@contextmanager
def serving(kind, folder):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(params=[Plain, Ranging, Sorting, "local", "sftp"])
def place(request, tmp_path):
    """A folder, and a URL that reads it."""
    folder = tmp_path / "served"
    folder.mkdir()
    if request.param == "local":
        yield folder, f"local://{folder}"
    elif request.param == "sftp":
        yield folder, f"sftp://me:secret@127.0.0.1:{request.getfixturevalue('sftp_port')}/served"
    else:
        with serving(request.param, tmp_path) as port:
            yield folder, f"http://127.0.0.1:{port}/served"


def test_reading(place):
    folder, url = place
    local, storage = LocalStorage(folder), open_storage(url)
    for key in ("ckptstore.json", "packs/ab/1.pack", "packs/cd/2.pack", "manifests/a%20%25/1.json"):
        local.put(key, [DATA])
        assert storage.get(key) == DATA
        assert storage.head(key).size == len(DATA)
    assert {info.key: info.size for info in storage.list("")} == {info.key: info.size for info in local.list("")}
    assert keys(storage, "packs/") == {"packs/ab/1.pack", "packs/cd/2.pack"}
    assert keys(storage, "manifests/a%20%25/") == {"manifests/a%20%25/1.json"}
    assert keys(storage, "none/") == set()
    reads = [RangeRead(offset, memoryview(bytearray(100))) for offset in (0, 50, 1000, len(DATA) - 100)]
    storage.get_ranges("packs/ab/1.pack", reads)
    assert [bytes(one.out) for one in reads] == [DATA[one.offset : one.offset + 100] for one in reads]
    for length in (101, len(DATA)):
        with pytest.raises(CorruptData, match="ends"):
            read(storage, "packs/ab/1.pack", len(DATA) - 100, length)
    for act in (storage.get, storage.head, lambda key: read(storage, key, 0, 1)):
        with pytest.raises(ObjectNotFound):
            act("packs/none")


def test_nothing_can_be_written(place):
    folder, url = place
    storage = open_storage(url)
    for act in (lambda: storage.put("key", [b"x"]), lambda: storage.delete("key")):
        with pytest.raises(StorageReadOnly, match=f"{without_password(url)} can only be read: fsspec cannot store"):
            act()
    assert not list(folder.iterdir())


def test_a_store(place):
    folder, url = place
    with ckptstore.open(folder, run=RUN, chunk_bytes=CHUNK_BYTES) as store:
        for step in range(3):
            store.commit(state_of(RUN, step), step=step, metadata={"loss": step})
        made = store.log()
    with ckptstore.open(url, run=RUN) as store:
        assert store.steps() == [0, 1, 2]
        assert [(commit.id, commit.metadata) for commit in store.log()] == [(one.id, one.metadata) for one in made]
        assert store.runs()[0].name == RUN
        for step in range(3):
            assert store.checkout(step)["step"] == step
            assert_exact(store, RUN, step)
        assert store.diff(0, 1).changes
        assert "model/own" in store.manifest(1)
        assert store.verify().ok
        assert store.stats().commits == 3
        for act in (
            lambda: store.commit({"x": 1}, step=3),
            lambda: store.delete(0),
            lambda: store.tag("best", 0),
            lambda: store.gc(grace=0),
        ):
            with pytest.raises(StorageReadOnly, match="can only be read"):
                act()


def test_no_store(place):
    _, url = place
    with pytest.raises(ckptstore.NotAStore):
        ckptstore.open(url, create=False)


def test_a_web_server_that_is_busy(tmp_path):
    local = LocalStorage(tmp_path)
    for number in range(3):
        local.put(f"packs/{number}/key", [DATA])
    with serving(Plain, tmp_path) as port, Proxy(port) as proxy:
        storage = open_storage(f"http://127.0.0.1:{proxy.port}")
        busy = iter([None, BUSY, None, BUSY])
        proxy.answer = lambda _: next(busy, None)
        assert len(keys(storage)) == 3
        assert storage.get("packs/0/key") == DATA
        assert next(busy, None) is None
        proxy.answer = lambda _: BUSY
        impatient = FsspecStorage(f"http://127.0.0.1:{proxy.port}")
        for act in (impatient.get, impatient.head, lambda key: read(impatient, key, 0, 1), lambda key: keys(impatient)):
            with pytest.raises(StorageUnavailable):
                act("packs/0/key")
