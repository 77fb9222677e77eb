"""Storages on real servers behind a network that fails."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from ckptstore.errors import (
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ckptstore.storage import RangeRead, clients, open_storage
from ckptstore.storage.clients import connect
from ckptstore.storage.remote import FsspecStorage
from ckptstore.storage.wrappers import Retrying
from ckptstore.testing.storage import keys, read

LARGE = [bytes([number]) * (7 << 20) for number in range(6)]
VERBS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")


def storage_at(place, **options):
    return open_storage(place.url, storage_options={**place.options, **options})


def reply(status, code="", headers=""):
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>" if code else ""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


SLOW_DOWN = reply("503 Slow Down", "SlowDown")


class Answers:
    """Gives the reply to requests that are meant, as many as there are; counts those."""

    def __init__(self, reply, meant=lambda data: data.startswith(VERBS), most=None):
        self.reply, self.meant, self.most, self.given = reply, meant, most, 0

    def __call__(self, data):
        if not self.meant(data) or self.given == self.most:
            return None
        self.given += 1
        return self.reply


class Losing:
    """Loses the reply to the first message with these bytes in it."""

    def __init__(self, marker):
        self.marker, self.lost = marker, False

    def __call__(self, data):
        self.lost |= self.marker in data
        return self.marker in data


def unfinished(place):
    """Uploads that were begun and neither completed nor aborted."""
    fs, root = connect(place.url, place.options)
    bucket, _, folder = root.partition("/")
    try:
        listed = fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
    except FileNotFoundError:  # rclone's NoSuchUpload: none was ever begun in that bucket
        return []
    return [upload["Key"] for upload in listed if upload["Key"].startswith(folder)]


def do_everything(storage):
    storage.put("large", LARGE)
    storage.put("small", [b"small"])
    assert storage.get("large") == b"".join(LARGE)
    assert [read(storage, "large", number * (7 << 20), 3) for number in range(6)] == [bytes([n]) * 3 for n in range(6)]
    assert storage.head("small").size == 5
    assert keys(storage) == {"large", "small"}
    storage.delete("small")
    with pytest.raises(ObjectNotFound):
        storage.get("small")


def test_a_storm(far_s3):
    place, proxy = far_s3
    chance = random.Random(1)
    busy = Answers(SLOW_DOWN, lambda data: data.startswith(VERBS) and chance.random() < 0.3)
    proxy.answer = busy
    do_everything(storage_at(place))
    assert busy.given >= 5
    proxy.answer = lambda _: None
    storage_at(place).sweep_temporary("", 0)  # an abort may have been refused as well
    assert unfinished(place) == []


@pytest.mark.parametrize("status", ["429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway"])
def test_what_fails_for_a_moment(far_s3, status):
    place, proxy = far_s3
    proxy.answer = busy = Answers(reply(status), most=3)
    storage_at(place).put("key", [b"x"])
    assert busy.given == 3


def test_resets(far_s3):
    place, proxy = far_s3
    with resetting(proxy, every=0.15) as resets:
        do_everything(storage_at(place))
    assert next(resets) >= 3
    storage_at(place).sweep_temporary("", 0)  # an abort may have been cut as well
    assert unfinished(place) == []


@contextmanager
def resetting(proxy, every):
    over, resets = threading.Event(), itertools.count()

    def work():
        while not over.wait(every) and next(resets) < 12:
            proxy.reset()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield resets
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("parts", "request_"),
    [([b"a small object"], b"a small object"), (LARGE, b"<CompleteMultipartUpload"), (LARGE, b"partNumber=2")],
)
def test_a_lost_reply_to_a_put(far_s3, parts, request_):
    place, proxy = far_s3
    storage = storage_at(place)
    proxy.lose_reply_to = losing = Losing(request_)
    storage.put("key", parts)
    assert losing.lost
    assert storage.get("key") == b"".join(parts)
    with pytest.raises(ObjectExists):
        storage.put("key", [b"other"])
    assert unfinished(place) == []


def test_a_lost_reply_to_a_delete(far_s3):
    place, proxy = far_s3
    storage = storage_at(place)
    storage.put("key", [b"x"])
    proxy.lose_reply_to = lambda data: data.startswith(b"DELETE ")
    storage.delete("key")
    assert keys(storage) == set()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("403 Forbidden", "AccessDenied", StorageReadOnly),
        ("400 Bad Request", "BadDigest", StorageError),
        ("507 Insufficient Storage", "XMinioStorageFull", StorageFull),
    ],
)
def test_what_is_permanent_is_not_tried_again(far_s3, status, code, kind):
    place, proxy = far_s3
    refusing = Answers(reply(status, code), lambda data: data.startswith(b"PUT "))
    proxy.answer = refusing
    with pytest.raises(kind, match="key") as caught:
        storage_at(place).put("key", [b"x"])
    assert type(caught.value) is kind
    assert refusing.given == 1


def test_a_refused_part_leaves_nothing(far_s3):
    place, proxy = far_s3
    proxy.answer = Answers(reply("403 Forbidden", "AccessDenied"), lambda data: b"partNumber=3" in data)
    with pytest.raises(StorageReadOnly):
        storage_at(place).put("key", LARGE)
    assert keys(storage_at(place)) == set()
    assert unfinished(place) == []


def test_an_upload_of_a_killed_writer_is_swept(s3):
    storage = storage_at(s3)
    fs, root = connect(s3.url, s3.options)
    bucket, _, folder = root.partition("/")
    begun = fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{folder}/packs/1")
    fs.call_s3(
        "upload_part", Bucket=bucket, Key=f"{folder}/packs/1", PartNumber=1, UploadId=begun["UploadId"], Body=b"x"
    )
    for key in ("datasets/packs/1", "packs.tar"):
        fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{folder}/{key}")
    assert storage.sweep_temporary("packs/", 3600) == 0
    assert len(unfinished(s3)) == 3
    assert storage.sweep_temporary("packs/", 0) == 1
    assert not any(key.endswith("packs/1") and "datasets" not in key for key in unfinished(s3))
    assert len(unfinished(s3)) == 2, "which are of others"


def test_parts_and_ranges_go_at_once(far_s3):
    place, proxy = far_s3
    storage_at(place).put("key", LARGE)
    assert proxy.connections >= 3
    before = proxy.connections
    reads = [RangeRead(number * (7 << 20), memoryview(bytearray(1000))) for number in range(6)]
    storage_at(place).get_ranges("key", reads)
    assert proxy.connections - before >= 6
    assert [bytes(read.out) for read in reads] == [bytes([number]) * 1000 for number in range(6)]


def test_a_server_that_is_gone(s3):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    storage = Retrying(FsspecStorage(s3.url, s3.options | {"client_kwargs": {"endpoint_url": address}}), patience=1)
    begun = time.monotonic()
    for act in (storage.get, lambda key: storage.put(key, [b"x"])):
        with pytest.raises(StorageUnavailable, match=r"a/key.*try again"):
            act("a/key")
    assert 1 < time.monotonic() - begun < 60


def test_a_server_that_says_nothing(far_s3):
    place, proxy = far_s3
    options = place.options | {"config_kwargs": {"read_timeout": 0.3, "retries": {"total_max_attempts": 1}}}
    storage = Retrying(FsspecStorage(place.url, options), patience=0)
    storage.put("key", [b"x"])
    proxy.held = True
    with pytest.raises(StorageUnavailable, match="timeout"):
        storage.get("key")
    proxy.held = False
    assert storage.get("key") == b"x"


@pytest.mark.parametrize("size", [1, 7 << 20])
def test_a_server_that_takes_nothing(far_s3, monkeypatch, size):
    monkeypatch.setattr(clients, "_LONGEST_ANSWER", 1.0)
    monkeypatch.setattr(clients, "_SLOWEST", 7 << 20)
    place, proxy = far_s3
    storage = open_storage(place.url, storage_options=place.options)
    storage.put("other", [b"x"])

    def hold(message):
        proxy.held = proxy.held or message.startswith(b"PUT ")

    proxy.answer = hold
    with pytest.raises(StorageUnavailable, match=r"key: .*Timeout.*try again"):
        Retrying(FsspecStorage(place.url, place.options), patience=0).put("key", [b"y" * size])
    proxy.answer, proxy.held = lambda _: None, False
    assert storage.get("other") == b"x"


def test_what_a_user_says_of_retries_is_left(far_s3):
    place, proxy = far_s3
    proxy.answer = busy = Answers(reply("503 Slow Down"))
    options = place.options | {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
    with pytest.raises(StorageUnavailable, match="Service Unavailable"):
        FsspecStorage(place.url, options).head("key")
    assert busy.given == 1


@pytest.mark.parametrize("server", ["s3", "gcs"])
def test_listings_of_others_are_never_remembered(server, request):
    place = request.getfixturevalue(server)
    one, other = storage_at(place), storage_at(place)
    for number in range(3):
        assert len(keys(one)) == len(keys(other, "packs/")) == number
        other.put(f"packs/{number}", [b"x"])
        assert one.head(f"packs/{number}").size == 1


def test_gcs_that_is_busy_once(far_gcs):
    place, proxy = far_gcs
    proxy.answer = busy = Answers(reply("503 Service Unavailable"), most=1)
    storage_at(place).put("key", [b"x"])
    assert busy.given == 1


def test_gcs_that_refuses(far_gcs):
    place, proxy = far_gcs
    storage = storage_at(place)
    proxy.answer = refusing = Answers(reply("403 Forbidden"), lambda data: data.startswith(b"POST "))
    with pytest.raises(StorageError, match="Forbidden"):
        storage.put("key", [b"x"])
    assert refusing.given == 1
    assert keys(storage) == set()


def test_gcs_loses_the_reply_to_a_put(far_gcs):
    place, proxy = far_gcs
    storage = storage_at(place)
    proxy.lose_reply_to = losing = Losing(b"a small object")
    storage.put("key", [b"a small object"])
    assert losing.lost
    assert storage.get("key") == b"a small object"
