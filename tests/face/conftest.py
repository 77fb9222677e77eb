from __future__ import annotations

import pytest
import torch

import ckptstore


@pytest.fixture(autouse=True)
def gradients():
    """Whoever leaves gradients off is told of, before others fail for it."""
    yield
    left_on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert left_on, "gradients were left off"


@pytest.fixture
def store(tmp_path):
    """An empty store whose chunks are so small that tensors of the tests span several."""
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
        yield store
