"""Models that are parallel in every way go on in every other, with another number of ranks."""

from __future__ import annotations

import pytest

WAYS = [
    ("HSDP", 4),
    ("FSDP", 3),
    ("TP", 4),
    ("FSDP", 1),
    ("TP in FSDP", 4),
    ("TP", 2),
    ("HSDP", 4),
    ("TP in FSDP", 4),
    ("FSDP", 2),
    ("TP", 3),
    ("HSDP", 4),
]
"""One after another; how it is parallel, and the count of ranks."""


@pytest.mark.parametrize("through", ["DCP", "store"])
def test_a_training_goes_on_in_another_way(crew, store, through):
    task = {"place": store.url, "through": through}
    (_, straight, _), *_ = crew.do("train_parallel", 1, **task, way="FSDP", start=0, stop=len(WAYS))
    store.delete(len(WAYS))
    saved, losses = None, []
    for step, (way, count) in enumerate(WAYS):
        answers = crew.do("train_parallel", count, **task, way=way, start=step, stop=step + 1)
        for loaded, *_ in answers:
            assert loaded == saved, (way, count)
        saved = answers[0][2]
        losses += answers[0][1]
    assert losses == pytest.approx(straight, rel=1e-4)
    assert store.steps() == list(range(1, len(WAYS) + 1))
    assert store.verify().problems == ()


def test_a_training_goes_on_whose_optimizer_is_dealt_among_ranks(crew, store):
    """With the same bits, or its commit of step 5 would be refused; a scheduler has just set another learning rate."""
    straight = crew.do("train_zero", 2, place=store.url, start=0, stop=5)
    begun = crew.do("train_zero", 2, place=store.url, start=0, stop=2)
    gone_on = crew.do("train_zero", 2, place=store.url, start=2, stop=5)
    assert [first + then for first, then in zip(begun, gone_on, strict=True)] == straight
    assert store.steps() == [2, 5]
