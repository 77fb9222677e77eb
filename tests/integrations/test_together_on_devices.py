"""Commits that several processes make of tensors on devices: what did not change stays there."""

from __future__ import annotations

import pytest
import torch

from ckptstore.state.devices.fingerprints import SEGMENT, segments
from tests.integrations.rank_child import CHUNK_BYTES, drifting

WHOLE = drifting(0).nbytes
LAYOUTS = [
    ("plain", 1),
    ("plain", 2),
    ("rows", 1),
    ("rows", 4),
    ("columns", 2),
    ("rows twice", 4),
    ("replicated rows", 4),
]


@pytest.mark.parametrize(
    ("how", "layout", "count"),
    [
        *((how, "plain", 2) for how in ("commit", "commit_async")),
        *((how, "rows", count) for how in ("commit", "commit_async", "dcp.save") for count in (1, 2, 4)),
    ],
)
def test_what_did_not_change_does_not_cross(crew, store, layout, count, how):
    crossed = crew.do("commit_changes_on_devices", count, place=store.url, layout=layout, how=how)
    part = WHOLE // (count if layout == "rows" else 1)
    prints = 16 * segments(part)
    assert [of_rank[1] for of_rank in crossed] == [prints] * count
    assert all(part <= of_rank[0] - prints <= 2 * part for of_rank in crossed)
    assert all(SEGMENT <= of_rank[2] - prints <= SEGMENT + CHUNK_BYTES for of_rank in crossed)
    assert sum(of_rank[3] - prints for of_rank in crossed) == WHOLE
    assert store.verify().problems == ()


def test_what_changes_too_early_is_not_stored_as_something_else(crew, store):
    answers = crew.ask("change_while_committing", 2, place=store.url)
    assert [answer["error"] for answer in answers] == ["StateError", "RankFailed"]
    assert "'model/x' was changed while it was committed" in answers[0]["traceback"]
    assert store.steps() == []
    store.commit({"model": {"x": torch.arange(4096.0)}}, step=1)
    assert store.checkout(1)["model"]["x"].equal(torch.arange(4096.0))
    assert store.verify().problems == ()


@pytest.mark.parametrize(("layout", "count"), LAYOUTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_holds_what_it_held_on_the_devices(crew, store, layout, count, seed):
    found = crew.do("train_on_devices", count, place=store.url, layout=layout, seed=seed)
    assert found == [[]] * count
    assert store.verify().problems == ()


@pytest.mark.parametrize(("layout", "count"), LAYOUTS)
def test_so_does_every_step_that_dcp_saves(crew, store, layout, count):
    found = crew.do("train_on_devices", count, place=store.url, layout=layout, seed=2, how="dcp.save")
    assert found == [[]] * count
    assert store.verify().problems == ()
