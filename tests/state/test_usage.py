"""What is taken of a CUDA device's memory beside training."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ckptstore.state.devices.copy_targets import CopyTargets
from ckptstore.state.devices.cuda import Usage
from ckptstore.state.devices.fingerprints import TAKEN, keys, reference

GIB = 1 << 30
DEVICE = torch.device("cuda", 0)


def usage(held: int, peak: int, others: int = 1) -> Usage:
    return Usage(80 * GIB, others * GIB, held * GIB, peak * GIB)


@pytest.mark.parametrize(
    ("it", "spare"),
    [
        (usage(30, 50), 21),  # of what is left beyond the peak, a tenth of all is training's
        (usage(30, 50, others=20), 2),
        (usage(30, 72), 0),
        (usage(30, 30), 0),  # a state that was made or loaded, and no step yet
        (usage(0, 79), 0),
    ],
)
def test_what_training_took_at_most_is_left_to_it(it, spare):
    assert it.spare() == spare * GIB


@pytest.mark.parametrize(
    ("it", "short"), [(usage(30, 50), False), (usage(70, 74), False), (usage(70, 76), True), (usage(30, 50, 27), True)]
)
def test_copies_are_given_up_before_training_finds_no_memory(it, short):
    assert it.is_short() == short


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("held", [True, False])
def test_what_computing_fingerprints_takes_for_a_moment_is_no_training(start, held):
    data = torch.zeros((40 << 20) + 3, dtype=torch.uint8)[start:]
    its = keys(data.device)
    copies = CopyTargets([torch.zeros_like(data)], [0], reference([data], its) if held else None)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        reference([data], its, copies)
    events = [it for it in found.profiler.kineto_results.events() if it.name() == "[memory]"]
    taken = max(accumulate(it.nbytes() for it in sorted(events, key=lambda it: it.start_ns())))
    assert 0 < taken < TAKEN
    assert Usage(4 * GIB, 0, GIB, GIB + taken).spare() == 0
    assert Usage(4 * GIB, 0, GIB, GIB + TAKEN).spare() > 0


def asked(monkeypatch: pytest.MonkeyPatch, free: int, stats: Any) -> Usage:
    def memory_stats(_: torch.device) -> Any:
        if isinstance(stats, Exception):
            raise stats
        return stats

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", memory_stats)
    return Usage.of(DEVICE)


def test_memory_that_torch_holds_in_reserve_is_free(monkeypatch):
    reserved, allocated = {"current": 70 * GIB}, {"current": 20 * GIB, "peak": 40 * GIB}
    found = asked(monkeypatch, 2, {"reserved_bytes": {"all": reserved}, "allocated_bytes": {"all": allocated}})
    assert found == usage(20, 40, others=8)
    assert found.spare() == 24 * GIB
    assert not found.is_short()


def test_an_allocator_without_statistics_is_left_alone(monkeypatch):
    found = asked(monkeypatch, 60, RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats"))
    assert found.spare() == 0
    assert not found.is_short()
    assert asked(monkeypatch, 3, {}).is_short()
