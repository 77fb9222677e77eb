"""Each thread that reads goes on where it was."""

import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from threading import Barrier, get_ident
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.chunkstore import jobs, reader
from ckptstore.chunkstore.stretches import Stretches
from ckptstore.storage.local import LocalStorage


@given(st.integers(0, 300), st.integers(1, 8), st.data())
def test_each_batch_is_dealt_once_in_order_and_long_stretches_come_first(count, threads, data):
    stretches = Stretches(range(count), threads)
    hands = [iter(stretches) for _ in range(threads)]
    dealt: list[list[int]] = [[] for _ in hands]
    left = set(range(threads))
    while left:
        number = data.draw(st.sampled_from(sorted(left)))
        try:
            dealt[number].append(next(hands[number]))
        except StopIteration:
            left.remove(number)
    assert sorted(batch for hand in dealt for batch in hand) == list(range(count))
    assert all(hand == sorted(hand) for hand in dealt)
    first = max(1, count // (2 * threads))
    for hand in dealt:
        if hand and hand[0] == 0:
            assert hand[:first] == list(range(first))


def test_the_last_ones_are_dealt_one_by_one():
    stretches = Stretches(range(100), 4)
    one, other = iter(stretches), iter(stretches)
    taken = [next(one) for _ in range(100 - 15)]
    assert taken == list(range(85))
    assert [next(other), next(one), next(other), next(one)] == [85, 86, 87, 88]


def test_threads_together_get_all_of_them(request):
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    stretches = Stretches(range(10_000), 8)
    ready = Barrier(8)

    def take() -> list[int]:
        ready.wait()
        return list(stretches)

    with ThreadPoolExecutor(8) as pool:
        taken = [batch for hand in [pool.submit(take) for _ in range(8)] for batch in hand.result()]
    assert sorted(taken) == list(range(10_000))


def test_who_gives_up_ends_it_for_all():
    stretches = Stretches(range(100), 2)
    one, other = iter(stretches), iter(stretches)
    assert next(one) == 0
    assert next(other) == 25
    stretches.give_up()
    assert list(one) == list(other) == list(stretches) == []


@pytest.fixture
def reads(monkeypatch):
    """Thread → where it read, in order."""
    seen: dict[int, list[Any]] = defaultdict(list)
    get_ranges = LocalStorage.get_ranges

    def reading(self, key, ranges):
        seen[get_ident()] += [(key, part.offset, part.offset + len(part.out)) for part in ranges]
        get_ranges(self, key, ranges)

    monkeypatch.setattr(LocalStorage, "get_ranges", reading)
    return seen


def test_a_checkout_reads_long_stretches(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(jobs, "BATCH_BYTES", 1)
    monkeypatch.setattr(reader, "_WORKERS", 2)
    state = {"w": torch.randn(80 * 8192)}
    with ckptstore.open(tmp_path / "store", compression="none", chunk_bytes=32768) as store:
        store.commit(state, step=0)
        reads.clear()
        assert torch.equal(store.checkout(0)["w"], state["w"])
    count = sum(map(len, reads.values()))
    assert count > 64
    breaks = sum(
        before[0] != after[0] or not 0 <= after[1] - before[2] <= 4096
        for places in reads.values()
        for before, after in pairwise(places)
    )
    assert breaks < count // 5  # one where a stretch ends; many where each batch goes to who is free


def test_nothing_to_read_begins_no_thread(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(reader, "Pool", lambda *arguments: begun.append(arguments))
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"epoch": 3}, step=0)
        assert store.checkout(0) == {"epoch": 3}
    assert not begun
