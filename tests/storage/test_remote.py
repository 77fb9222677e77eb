from __future__ import annotations

import errno
import ssl
import sys
import uuid

import fsspec
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem
from s3fs.errors import translate_boto_error

import ckptstore
from ckptstore.errors import (
    InvalidArgument,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ckptstore.storage import RangeRead, open_storage
from ckptstore.storage.failures import without_password, write_error
from ckptstore.storage.remote import FsspecStorage
from ckptstore.testing.servers import s3_bucket, s3_server
from ckptstore.testing.storage import keys, read


class OtherScheme(MemoryFileSystem):  # type: ignore[misc]
    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("remembering://"))


class Remembering(OtherScheme):
    """Answers from fsspec's cache of listings what it can, and does not let it be cleared."""

    def find(self, path, **kwargs):
        if path not in self.dircache:
            self.dircache[path] = super().find(path, **kwargs)
        return self.dircache[path] if path in self.dircache else super().find(path, **kwargs)


class RememberingItsOwnWay(OtherScheme):
    """Has a cache of its own, cleared in the usual way."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.remembered = {}

    def find(self, path, **kwargs):
        return self.remembered.setdefault(path, super().find(path, **kwargs))

    def invalidate_cache(self, path=None):
        self.remembered.clear()


@pytest.mark.parametrize("kind", [Remembering, RememberingItsOwnWay])
def test_listings_are_never_remembered(kind):
    fsspec.register_implementation("remembering", kind, clobber=True)
    name = uuid.uuid4().hex
    storage, other = FsspecStorage(f"remembering://{name}"), FsspecStorage(f"memory://{name}")
    for number in range(3):
        assert len(keys(storage)) == number
        other.put(f"{number}", [b"x"])


@pytest.fixture
def storage():
    return FsspecStorage(f"memory://{uuid.uuid4().hex}")


def test_near_ranges_are_one_request(storage, monkeypatch):
    asked = []
    original = MemoryFileSystem.cat_file

    def cat_file(self, path, start=None, end=None, **kwargs):
        asked.append((start, end))
        return original(self, path, start, end, **kwargs)

    data = bytes(range(256)) * 4096
    storage.put("key", [data])
    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    reads = [RangeRead(offset, memoryview(bytearray(100))) for offset in (900_000, 0, 300, 200)]
    storage.get_ranges("key", reads)
    assert sorted(asked) == [(0, 400), (900_000, 900_100)]
    assert all(bytes(read.out) == data[read.offset : read.offset + 100] for read in reads)


def test_roots_are_apart():
    base = f"memory://{uuid.uuid4().hex}"
    one, other = FsspecStorage(f"{base}/a"), FsspecStorage(f"{base}/ab/")
    one.put("packs/1", [b"one"])
    other.put("packs/1", [b"other"])
    assert keys(one) == keys(other) == {"packs/1"}
    assert one.get("packs/1") == b"one"
    assert keys(FsspecStorage(base)) == {"a/packs/1", "ab/packs/1"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError("denied"), StorageReadOnly),
        (OSError(errno.EROFS, "read-only"), StorageReadOnly),
        (ssl.SSLError(errno.EPERM, "of OpenSSL, which counts its errors itself"), StorageError),
        (OSError(errno.ENOSPC, "full"), StorageFull),
        (OSError(errno.EDQUOT, "quota"), StorageFull),
        (OSError("bucket is gone"), StorageError),
        (RuntimeError("something of the library's own"), StorageError),
    ],
)
def test_write_errors(storage, monkeypatch, error, kind):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(storage._fs, "pipe_file", fail)
    monkeypatch.setattr(storage._fs, "rm_file", fail)
    for act in (lambda: storage.put("a/key", [b"x"]), lambda: storage.delete("a/key")):
        with pytest.raises(kind, match=f"{storage.url}/a/key: .*{error.args[-1]}") as caught:
            act()
        assert type(caught.value) is kind


@pytest.mark.parametrize(("code", "kind"), [("NoSuchUpload", StorageUnavailable), ("NoSuchBucket", StorageError)])
def test_an_upload_that_is_gone_is_begun_anew_and_a_bucket_is_not(code, kind):
    response = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    error = translate_boto_error(ClientError(response, "CompleteMultipartUpload"))
    assert isinstance(error, FileNotFoundError)
    assert write_error(error) is kind


def test_read_errors(storage, monkeypatch):
    def fail(*_, **__):
        raise PermissionError("denied")

    for name in ("cat_file", "cat_ranges", "info", "find"):
        monkeypatch.setattr(storage._fs, name, fail)
    for act in (storage.get, storage.head, keys_of(storage), lambda key: read(storage, key, 0, 1)):
        with pytest.raises(StorageError, match=r"a/key: PermissionError: denied") as caught:
            act("a/key")
        assert type(caught.value) is StorageError


def keys_of(storage):
    return lambda prefix: keys(storage, prefix)


def test_library_without_create_mode_looks_first(storage):
    storage._how = {}
    storage.put("key", [b"x"])
    with pytest.raises(ObjectExists):
        storage.put("key", [b"y"])
    assert storage.get("key") == b"x"


def test_failed_put_leaves_nothing(storage, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(storage._fs, "pipe_file", lambda *_, **__: 1 / 0)
        with pytest.raises(StorageError, match="division"):
            storage.put("key", [b"x"])
    with pytest.raises(ObjectNotFound):
        storage.get("key")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/a", "s3://key@bucket/a"),
        ("sftp://me:se:c@ret@host:22/a@b", "sftp://me@host:22/a@b"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("http://host:80/a", "http://host:80/a"),
        ("memory://a", "memory://a"),
    ],
)
def test_passwords_are_not_shown(url, shown):
    assert without_password(url) == shown


def test_password_is_not_shown_by_storage():
    storage = FsspecStorage("memory://me:secret@host/a")
    with pytest.raises(ObjectNotFound) as caught:
        storage.get("key")
    assert not any("secret" in text for text in (storage.url, repr(storage), str(caught.value)))


def test_unknown_scheme():
    with pytest.raises(InvalidArgument, match="nosuch"):
        open_storage("nosuch://bucket")


@pytest.mark.parametrize(("scheme", "module", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_missing_package_names_the_extra(monkeypatch, scheme, module, extra):
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(_registry, scheme, raising=False)
    with pytest.raises(InvalidArgument, match=rf'pip install "ckptstore\[{extra}\]"') as caught:
        open_storage(f"{scheme}://me:secret@bucket/a")
    assert "secret" not in str(caught.value)


def test_refused_options():
    with pytest.raises(InvalidArgument, match="cannot open this"):
        open_storage("dir://a")


def test_file_system_out_of_reach(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(MemoryFileSystem, "__init__", refuse)
    with pytest.raises(StorageError, match=r"cannot reach memory://a: .*nobody listens"):
        open_storage("memory://a")


class LosingReplies(OtherScheme):
    """Stores what it is given, and fails then, as when the client sent it again by itself."""

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value, mode=mode, **kwargs)
        raise FileExistsError(path)


class LosingParts(OtherScheme):
    """Stores a part of what it is given, and fails then."""

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        super().pipe_file(path, value[:3], mode=mode, **kwargs)
        raise TimeoutError(path)


def test_a_lost_reply_is_no_failure():
    fsspec.register_implementation("remembering", LosingReplies, clobber=True)
    storage = open_storage(f"remembering://{uuid.uuid4().hex}")
    storage.put("key", [b"four", b"five"])
    assert storage.get("key") == b"fourfive"
    with pytest.raises(ObjectExists):
        storage.put("key", [b"other"])


def test_a_part_is_a_failure():
    fsspec.register_implementation("remembering", LosingParts, clobber=True)
    storage = open_storage(f"remembering://{uuid.uuid4().hex}")
    with pytest.raises(ObjectExists):
        storage.put("key", [b"four", b"five"])


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("remembering://user:hunter2@bucket/x", {}),
        ("remembering://bucket/x", {"client_kwargs": {"aws_Secret_key": "hunter2"}}),
        ("remembering://bucket/x", {"client_kwargs": {"endpoint_url": "https://user:hunter2@host"}}),
        ("remembering://bucket/x", {"headers": {"Authorization": "hunter2"}}),
        ("remembering://bucket/x", {"account_key": "hunter2"}),
        ("remembering://bucket/x", {"passphrase": "hunter2"}),
    ],
)
def test_secrets_are_not_shown(url, options, monkeypatch):
    class Leaking(OtherScheme):
        def cat_file(self, path, **kwargs):
            raise TimeoutError(f"no reply from {url} with {options}")

    fsspec.register_implementation("remembering", Leaking, clobber=True)
    storage = FsspecStorage(url, options)
    with pytest.raises(StorageError, match=r"no reply.*\*\*\*") as found:
        storage.get("key")
    assert "hunter2" not in f"{found.value}{storage!r}{storage.url}"


def test_a_server_that_has_seen_no_upload_yet_is_swept_of_none():
    with s3_server() as port:
        bucket = s3_bucket(port)
        assert FsspecStorage(bucket.below("store"), bucket.options).sweep_temporary("packs/", 0) == 0


def test_a_missing_bucket_is_no_missing_object(s3):
    url = f"s3://{uuid.uuid4().hex}/store"
    storage = open_storage(url, storage_options=s3.options)
    for act in (lambda: storage.get("key"), lambda: list(storage.list("packs/"))):
        with pytest.raises(StorageError, match=f"cannot read {url}.*bucket does not exist") as raised:
            act()
        assert type(raised.value) is StorageError
    with pytest.raises(StorageError, match="bucket does not exist"):
        ckptstore.open(url, catalog="sqlite:///catalog.sqlite", storage_options=s3.options)
