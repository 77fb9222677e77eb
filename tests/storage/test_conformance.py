from __future__ import annotations

import uuid

import pytest

from ckptstore.storage import open_storage
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import Intercepted, ReadOnly
from ckptstore.testing.storage import StorageConformance


class TestLocal(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path):
        return LocalStorage(tmp_path / "store", create=True)


class TestLocalWithoutHardLinks(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path, no_hard_links):
        return LocalStorage(tmp_path / "store", create=True)


class TestMemory(StorageConformance):
    racing_puts_lose = False

    @pytest.fixture
    def storage(self):
        return open_storage(f"memory://{uuid.uuid4().hex}/below")


class TestS3(StorageConformance):
    """The server, which is not S3 itself, knows no If-None-Match, and shows what is being written."""

    racing_puts_lose = False
    hides_parts = False

    @pytest.fixture
    def storage(self, s3):
        return open_storage(s3.url, storage_options=s3.options)


class TestGcs(StorageConformance):
    """The server, which is not GCS itself, knows no ifGenerationMatch."""

    racing_puts_lose = False
    many = 300

    @pytest.fixture
    def storage(self, gcs):
        return open_storage(gcs.url, storage_options=gcs.options)


class TestWrapped(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path):
        return Intercepted(LocalStorage(tmp_path, create=True))


def test_protocol(tmp_path):
    from ckptstore.storage import Storage

    local = LocalStorage(tmp_path)
    assert all(
        isinstance(storage, Storage)
        for storage in (local, ReadOnly(local, "for reading only"), open_storage("memory://x"))
    )
