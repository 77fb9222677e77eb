"""Commits under the names that DCP gives to weights and moments: of stages of a pipeline, and of wrapped models."""

from __future__ import annotations

import pytest

from ckptstore.testing.audit import assert_nothing_leaked
from tests.integrations.naming_tasks import whole_table

HOW = pytest.mark.parametrize("how", ["at once", "in the background"])
WAYS = [("stages", 4), ("stages", 4), ("FSDP", 3), ("stages", 4), ("compiled", 1), ("DDP", 2)]
"""One after another; how the model is parallel, and the count of ranks."""


@HOW
@pytest.mark.parametrize(
    ("task", "ways"),
    [("train_by_names", WAYS), ("train_by_an_object", [way for way in WAYS if way[0] != "stages"])],
)
def test_a_training_goes_on_under_the_same_names(crew, store, how, task, ways):
    saved: dict[str, str] = {}
    for step, (way, count) in enumerate(ways):
        answers = crew.do(task, count, place=store.url, way=way, how=how, start=step)
        if step:
            assert together(loaded for loaded, _ in answers) == saved, way
        saved = together(saved for _, saved in answers)
    assert len(saved) > 8 * 3 + 8
    weights = {path for path in store.manifest(len(ways)) if "model/" in path}
    assert weights == {path for path in store.manifest(1) if "model/" in path} and len(weights) == 8
    assert store.verify().problems == ()


def together(prints):
    """Of all ranks, who agree on what several of them have."""
    found: dict[str, str] = {}
    for each in prints:
        assert all(found.setdefault(name, value) == value for name, value in each.items())
    return found


@pytest.mark.parametrize(
    ("task", "arguments", "misfit"),
    [
        (
            "train_stages",
            {"optim": "optim"},
            "ranks 0 and 2 have other elements of one part: copies that drifted apart, or are divided",
        ),
        (
            "train_uneven_stages",
            {},
            "rank 0 has a part of torch float32[300, 4], rank 2 a part of torch float32[301, 4]",
        ),
    ],
)
def test_optimizers_of_stages_under_one_name(crew, store, task, arguments, misfit):
    answers = crew.ask(task, 4, place=store.url, **arguments)
    assert [answer["error"] for answer in answers] == ["StateError", *["RankFailed"] * 3]
    for answer in answers:
        assert "'optim/state/0/exp_avg'" in answer["traceback"] and misfit in answer["traceback"]
        assert "as {'optim.stage0': …}, or those of DCP's named state dicts" in answer["traceback"]
    assert store.steps() == []
    assert_nothing_leaked(store.url)


def test_optimizers_of_stages_under_other_names(crew, store):
    assert crew.do("train_stages", 4, place=store.url, optim="optim.stage{}") == [True] * 4
    assert store.read(1, "optim.stage1/state/0/exp_avg").shape == store.read(1, "model/third.weight").shape
    assert list(store.checkout(1)) == ["model", "optim.stage0", "optim.stage1"]


def test_a_sharded_tensor_is_saved_by_dcp(crew, store):
    answers = crew.ask("save_sharded_tensor", 2, place=store.url)
    assert [answer["error"] for answer in answers] == ["UnsupportedLeaf"] * 2
    assert all("ShardedTensor with dcp.save and StoreWriter" in answer["traceback"] for answer in answers)
    assert store.read(1, "table/w").equal(whole_table())
    assert store.steps() == [1]
