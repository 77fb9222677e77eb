"""What encoding is worth on a storage, by a clock that the test moves."""

from __future__ import annotations

import os
import pickle

import pytest

from ckptstore.chunkstore.pace import Pace

MIB = 1 << 20


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def seen(clock, *, write, fast, best, far=True):
    """A pace that saw packs written and both efforts; each as (bytes per second, share that is left)."""
    pace = Pace(far=far, clock=clock)
    for _ in range(256):
        put(pace, clock, write)
        encode(pace, clock, "fast", fast)
        encode(pace, clock, "best", best)
    return pace


def put(pace, clock, rate):
    with pace.putting(64 * MIB):
        clock.now += 64 * MIB / rate


def encode(pace, clock, effort, measured):
    rate, share = measured
    with pace.encoding(effort, 16 * MIB) as made:
        clock.now += 16 * MIB / rate
        made.append(int(16 * MIB * share))


@pytest.mark.parametrize(
    ("write", "fast", "best", "expected"),
    [
        (1e9, (3e9, 0.8), (5e8, 0.5), "fast"),
        (3e9, (2e9, 0.8), (5e8, 0.5), "light"),
        (1e8, (2e9, 0.8), (5e8, 0.5), "best"),
        (1e9, (9e9, 1.0), (9e9, 1.0), "best"),  # nothing is lost by it
        (1e9, (8e8, 0.8), (7e8, 0.1), "light"),
    ],
)
def test_what_takes_least(write, fast, best, expected):
    assert seen(Clock(), write=write, fast=fast, best=best).choose() == expected


@pytest.mark.parametrize(("far", "expected"), [(False, "light"), (True, "best")])
def test_a_guess_comes_first(far, expected):
    assert Pace(far=far).choose() == expected


def test_a_wrong_guess_is_soon_forgotten():
    clock = Clock()
    pace = Pace(far=True, clock=clock)
    for _ in range(64):
        encode(pace, clock, pace.choose(), (1e8, 0.9))
    assert pace.choose() == "light"


@pytest.mark.parametrize(("write", "expected"), [(1e9, "light"), (4e8, "light"), (1.5e8, "fast"), (2e7, "best")])
def test_training_beside_a_local_disk_needs_the_cores_itself(write, expected):
    pace = seen(Clock(), write=write, fast=(1.2e9, 0.8), best=(3e8, 0.6), far=False)
    assert pace.choose(background=True) == expected


@pytest.mark.parametrize(
    ("write", "expected"), [(1e9, "light"), (6e8, "light"), (4.5e8, "fast"), (3e8, "fast"), (5e7, "best")]
)
def test_who_waits_for_a_slow_disk_has_cores_to_spare(write, expected):
    assert seen(Clock(), write=write, fast=(1.2e9, 0.8), best=(3e8, 0.6), far=False).choose() == expected


def test_a_network_is_slow_enough_beside_training_too():
    pace = seen(Clock(), write=2e8, fast=(1e9, 0.8), best=(1e8, 0.6))
    assert pace.choose() == pace.choose(background=True) == "fast"


def test_slow_first_chunks_do_not_keep_a_slow_disk_from_what_helps():
    """As they are, while a process imports what it needs, and loads compiled loops."""
    clock = Clock()
    pace = Pace(far=False, clock=clock)
    for _ in range(8):
        put(pace, clock, 4.5e8)
    for _ in range(2):
        assert pace.choose() == "fast"
        encode(pace, clock, "fast", (3e8, 0.8))
    assert pace.choose() == "fast"


def test_what_was_slow_long_ago_is_tried_again():
    clock = Clock()
    pace = Pace(far=False, clock=clock)
    for _ in range(64):
        put(pace, clock, 4.5e8)
        encode(pace, clock, "fast", (3e8, 0.8))
    written = 0
    while pace.choose() == "light" and written < 64 << 30:
        encode(pace, clock, "light", (9e9, 1.0))
        written += 16 * MIB
    assert 4 << 30 < written < 64 << 30


def test_what_threads_encode_at_once_counts_once():
    clock = Clock()
    pace = Pace(far=False, clock=clock)
    for _ in range(256):
        with pace.encoding("fast", 8 * MIB) as one, pace.encoding("fast", 8 * MIB) as other:
            clock.now += 16 * MIB / 1e9
            one.append(6 * MIB)
            other.append(6 * MIB)
        put(pace, clock, 1.5e8)
    assert pace.choose(background=True) == "fast"
    assert pace._efforts["fast"].rate.taken / pace._efforts["fast"].rate.seconds == pytest.approx(1e9, rel=0.01)
    assert pace._efforts["fast"].rate.made / pace._efforts["fast"].rate.taken == pytest.approx(0.75, rel=0.01)


def test_what_fails_does_not_count():
    clock = Clock()
    pace = seen(clock, write=1e9, fast=(3e9, 0.8), best=(5e8, 0.5))
    before = pace._efforts["fast"].rate.taken
    with pytest.raises(MemoryError), pace.encoding("fast", 16 * MIB):
        clock.now += 1e-3
        raise MemoryError
    assert pace._efforts["fast"].rate.taken == before
    encode(pace, clock, "fast", (3e9, 0.8))
    assert pace._efforts["fast"].rate.taken / pace._efforts["fast"].rate.seconds == pytest.approx(3e9, rel=0.05)


def test_a_forked_process_waits_for_no_thread_that_stayed_behind(monkeypatch):
    clock = Clock()
    pace = seen(clock, write=1e9, fast=(3e9, 0.8), best=(5e8, 0.5))
    with pace.encoding("fast", 16 * MIB):
        monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork, in which other threads are gone
        for _ in range(64):
            clock.now += 1
            encode(pace, clock, "fast", (3e9, 0.8))
        rate = pace._efforts["fast"].rate
        assert rate.taken / rate.seconds == pytest.approx(3e9, rel=0.05)


def test_what_changed_is_noticed():
    clock = Clock()
    pace = seen(clock, write=3e9, fast=(2e9, 0.8), best=(5e8, 0.5))
    assert pace.choose() == "light"
    for _ in range(32):
        put(pace, clock, 1e8)
    assert pace.choose() == "best"


def test_two_at_once_count_once_in_time():
    clock = Clock()
    pace = seen(clock, write=1e9, fast=(3e9, 0.8), best=(1.9e9, 0.8))
    for _ in range(32):
        with pace.putting(64 * MIB), pace.putting(64 * MIB):
            clock.now += 128 * MIB / 4e9
    assert pace.choose() == "light"


def test_a_failed_put_is_over():
    clock = Clock()
    pace = seen(clock, write=1e9, fast=(3e9, 0.8), best=(5e8, 0.5))
    with pytest.raises(OSError), pace.putting(64 * MIB):
        raise OSError
    clock.now += 1e6
    put(pace, clock, 1e9)
    assert pace.choose() == "fast"


def test_a_copy_in_another_process_begins_anew():
    assert pickle.loads(pickle.dumps(seen(Clock(), write=1e9, fast=(1e8, 1), best=(1e8, 1)))).choose() == "best"


def test_a_local_disk_that_writes_nothing_is_not_kept_waiting():
    pace = seen(Clock(), write=3e8, fast=(1.2e9, 0.8), best=(3e8, 0.6), far=False)
    assert (pace.choose(writes=True), pace.choose(writes=False)) == ("fast", "light")
    assert seen(Clock(), write=1e8, fast=(2e9, 0.8), best=(5e8, 0.5)).choose(writes=False) == "best"


def test_small_objects_do_not_make_a_local_disk_slow():
    clock = Clock()
    pace = Pace(far=False, clock=clock)
    for _ in range(256):
        with pace.putting(4 * MIB):
            clock.now += 0.03
    assert pace.choose() == "light"
