"""A store on real servers: every storage with every database."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import ckptstore
from ckptstore.catalog.catalog import open_catalog
from ckptstore.format.packs import pack_key
from ckptstore.storage import open_storage
from ckptstore.testing.audit import assert_exact, state_of


@pytest.fixture(params=["folder", "s3", "gcs"])
def place(request, tmp_path):
    if request.param == "folder":
        return {"url": tmp_path / "store"}
    bucket = request.getfixturevalue(request.param)
    return {"url": bucket.url, "storage_options": bucket.options}


@pytest.fixture(params=["sqlite", "postgres"])
def catalog(request, tmp_path):
    return f"sqlite:///{tmp_path}/catalog.sqlite" if request.param == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
def store(place, catalog):
    with ckptstore.open(**place, catalog=catalog, chunk_bytes=4096) as store:
        yield store


def stored(place):
    return {info.key for info in open_storage(place["url"], storage_options=place.get("storage_options")).list("")}


def test_a_store_lives_there(store, place, catalog):
    for step in range(6):
        store.commit(state_of("main", step), step=step, metadata={"loss": step})
    store.commit_async(state_of("main", 6), step=6).result()
    store.tag("best", 0)
    assert store.steps() == list(range(7))
    with ckptstore.open(**place, catalog=catalog) as other:
        for step in range(7):
            assert_exact(other, "main", step)
        rows = other.read(3, "model/own", index=slice(1000, 1010))
        assert torch.equal(rows, state_of("main", 3)["model"]["own"][1000:1010])
        assert {change.path for change in other.diff(2, 3).changes} >= {"model/own", "small", "step"}
        assert other.verify().ok
    assert store.gc(ckptstore.KeepLast(2), grace=0).deleted == (1, 2, 3, 4)
    store.gc(grace=0)
    assert store.steps() == [0, 5, 6]
    assert store.verify().ok
    with closing(open_catalog(catalog, create=False)) as found:
        documents = {commit.document for commit in found.commits()}
        packs = {pack_key(pack.name) for pack in found.packs()}
    assert stored(place) - {"catalog.sqlite"} == {"ckptstore.json"} | documents | packs


def test_what_did_not_change_is_not_sent_again(store, place):
    store.commit(state_of("main", 0), step=0)
    before = stored(place)
    store.commit(state_of("main", 0), step=1)
    assert len(stored(place) - before) == 1  # the manifest document
