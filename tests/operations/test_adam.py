from __future__ import annotations

import pytest
import torch
from torch import nn

import ckptstore
from ckptstore.format.codecs.adam_arithmetic import Number
from ckptstore.format.codecs.adam_steps import Step
from ckptstore.operations.committing.adam import steps_between
from ckptstore.state.adam import find_recipes
from ckptstore.state.tree import flatten


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store") as opened:
        yield opened


class Training:
    """A small model under an optimizer, and the commits of it."""

    def __init__(self, store, cls=torch.optim.AdamW, dtype=torch.float32, **settings):
        self.store, self.committed = store, 0
        self.model = nn.Linear(9, 5).to(dtype)
        self.optimizer = cls(self.model.parameters(), **settings)
        self.train()

    @property
    def state(self):
        return {"model": self.model, "optim": self.optimizer}

    def train(self):
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()

    def commit(self):
        self.committed += 1
        self.store.commit(self.state, step=self.committed)
        return self.store.manifest(self.committed)

    def steps(self, older, newer):
        recipe = find_recipes(flatten(self.state))[0]
        assert recipe.weight == "model/weight"
        return steps_between(older, newer, recipe)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_manifests_tell_the_step(store, cls, dtype):
    training = Training(store, cls, dtype, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    before = training.commit()
    training.train()
    number = Number.FLOAT32 if dtype is torch.float32 else Number.BFLOAT16
    step = Step(0.01, (0.8, 0.9), 1e-6, 0.3, decoupled=cls is torch.optim.AdamW, count=2, number=number)
    assert training.steps(before, training.commit()) == [step]


def test_a_schedule_may_have_gone_on_before_the_commit_or_after_it(store):
    training = Training(store, lr=0.01)
    before = training.commit()
    training.train()
    training.optimizer.param_groups[0].update(lr=0.02, betas=(0.5, 0.6))
    now, then = training.steps(before, training.commit())
    assert (now.lr, now.betas, now.count) == (0.02, (0.5, 0.6), 2)
    assert (then.lr, then.betas, then.count) == (0.01, (0.9, 0.999), 2)


@pytest.mark.parametrize("count", [0, 2])
def test_more_or_less_than_one_step(store, count):
    training = Training(store)
    before = training.commit()
    for _ in range(count):
        training.train()
    assert training.steps(before, training.commit()) == []


def test_a_learning_rate_may_be_a_tensor(store):
    training = Training(store, lr=torch.tensor(0.1))
    before = training.commit()
    training.train()
    (step,) = training.steps(before, training.commit())
    assert (step.lr, step.single) == (float(torch.tensor(0.1)), True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_have_no_steps(store, dtype):
    training = Training(store, dtype=dtype)
    before = training.commit()
    training.train()
    assert training.steps(before, training.commit()) == []


@pytest.mark.parametrize("missing", ["optim/param_groups/0/lr", "optim/state/0/step", "optim/state/0/exp_avg"])
def test_commits_that_do_not_tell_all(store, missing):
    training = Training(store)
    before = dict(training.commit())
    training.train()
    now = dict(training.commit())
    assert training.steps(before, now)
    assert training.steps({path: entry for path, entry in before.items() if path != missing}, now) == []
    assert training.steps(before, {path: entry for path, entry in now.items() if path != missing}) == []


@pytest.mark.parametrize("eps", ["small", None, 1j, 10**400], ids=["text", "none", "complex", "huge"])
def test_hyperparameters_of_an_unknown_kind(store, eps):
    training = Training(store)
    before = training.commit()
    training.train()
    training.optimizer.param_groups[0]["eps"] = eps
    assert training.steps(before, training.commit()) == []
