from __future__ import annotations

import pytest

import ckptstore


@pytest.fixture
def store(tmp_path):
    """An empty store whose chunks are so small that tensors of the tests span several."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
        yield store
