"""A fetch from an object store holds no more than its budget, the bytes on their way included."""

from __future__ import annotations

import os

import pytest

from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.catalog.records import NewCommit
from ckptstore.chunkstore import ChunkStore, Fetch, Piece
from ckptstore.errors import BudgetTooSmall
from ckptstore.format.version import StoreConfig
from ckptstore.storage import open_storage
from ckptstore.testing.memory import peak_of

SIZE = 1 << 20
COUNT = 32
NOISE = 3 << 19
"""What clients hold beside: headers, and what a socket gives before anyone asked."""


@pytest.fixture
def chunks(s3, tmp_path):
    catalog = open_catalog(sqlite_url(tmp_path / "catalog.sqlite"), create=True)
    config = StoreConfig(format=1, id="s" * 32, digest="xxh3_128", chunk_bytes=SIZE, created=1.0)
    return ChunkStore(open_storage(s3.url, storage_options=s3.options), catalog, config)


@pytest.fixture
def digests(chunks):
    session = chunks.catalog.open_session(60)
    with chunks.writer(session) as writer:
        digests = writer.write(Piece(memoryview(os.urandom(SIZE)), copied=True) for _ in range(COUNT))
        own, used = writer.finish()
    numbers: dict = {"leaves": 0, "logical_bytes": 0, "new_bytes": 0}
    fields: dict = {"metadata": {}, "content": b"", "document": "d", "manifest": b"", "parent": None}
    chunks.catalog.reserve(session, (), document="d")
    chunks.catalog.commit(
        session, NewCommit(id="c" * 32, run="main", step=0, packs=own, needs=used, **fields, **numbers)
    )
    return digests


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("budget", [3 * SIZE, 8 * SIZE, 20 * SIZE])
def test_what_is_held(chunks, digests, budget, every):
    wanted = digests[::every]
    out = [bytearray(SIZE) for _ in wanted]
    wishes = [Fetch(digest, SIZE, "a leaf", out=memoryview(to)) for digest, to in zip(wanted, out, strict=True)]
    chunks.fetch(wishes, budget=budget)  # connections are made once
    for to in out:
        to[:] = bytes(SIZE)
    assert peak_of(lambda: chunks.fetch(wishes, budget=budget)) < budget + NOISE
    assert [chunks.digest.compute(memoryview(to)) for to in out] == wanted


def test_a_budget_below_one_chunk_on_its_way_is_refused(chunks, digests):
    with pytest.raises(BudgetTooSmall, match=f"one chunk needs {2 * SIZE}"):
        chunks.fetch([Fetch(digests[0], SIZE, "", out=memoryview(bytearray(SIZE)))], budget=2 * SIZE - 1)
