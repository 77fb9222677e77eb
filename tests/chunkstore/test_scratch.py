"""Memory that is used again."""

from __future__ import annotations

import pytest
import torch

import ckptstore
from ckptstore.chunkstore import reader, scratch, writer
from ckptstore.chunkstore.scratch import Scratch


@pytest.fixture
def made(monkeypatch):
    """How large each buffer was that was asked of the system."""
    sizes: list[int] = []
    fresh = scratch._fresh

    def counted(size):
        sizes.append(size)
        return fresh(size)

    monkeypatch.setattr(scratch, "_fresh", counted)
    return sizes


def test_parts_are_apart_and_as_large_as_asked_for():
    with Scratch().lent(100) as take:
        parts = [take(count) for count in (60, 0, 40)]
        for number, part in enumerate(parts):
            part[:] = bytes([number + 1]) * len(part)
    assert [bytes(part) for part in parts] == [b"\1" * 60, b"", b"\3" * 40]


def test_nothing_is_lent_of_nothing():
    with Scratch().lent(0) as take:
        assert bytes(take(0)) == b""


def test_what_is_a_little_larger_goes_where_the_last_one_was(made):
    kept = Scratch()
    for size in (1 << 20, 900_000, 700_000, (1 << 20) + 1, 1_900_000, 2 << 20):
        with kept.lent(size) as take:
            take(size)[-1] = 1
    assert made == [1 << 20, (1 << 20) + 1]


def test_who_is_at_it_together_has_memory_of_his_own(made):
    kept = Scratch()
    for _ in range(3):
        with kept.lent(10) as one, kept.lent(10) as other:
            first, second = one(10), other(10)
            first[:], second[:] = b"a" * 10, b"b" * 10
            assert (bytes(first), bytes(second)) == (b"a" * 10, b"b" * 10)
    assert len(made) == 2


def test_after_an_error_it_is_used_again(made):
    kept = Scratch()
    for _ in range(3):
        with pytest.raises(OSError, match="read"), kept.lent(10):
            raise OSError("read")
    assert len(made) == 1


def test_reading_and_resting_on_chunks_takes_no_fresh_memory_for_each_batch(tmp_path, made):
    torch.manual_seed(0)
    weights = {f"w{number}": torch.randn(300_000) * 0.02 for number in range(60)}
    with ckptstore.open(tmp_path / "store", compression="best") as store:
        store.commit(weights, step=0)
        for weight in weights.values():
            weight.add_(torch.randn_like(weight), alpha=1e-5)
        made.clear()
        store.commit(weights, step=1)
        assert 0 < len(made) <= writer._WORKERS
        made.clear()
        found = store.checkout(1)
    assert 0 < len(made) <= 2 * reader._WORKERS
    assert all(found[name].equal(weight) for name, weight in weights.items())
