from __future__ import annotations

import pytest
import torch
from torch import nn

import ckptstore
from ckptstore import KeepEvery
from ckptstore.testing.equality import assert_same

ADAM = 4


class Training:
    def __init__(self, cls=torch.optim.AdamW, dtype=torch.float32, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(200, 300, bias=False), nn.Linear(100, 200, bias=False)).to(dtype)
        self.optimizer = cls(self.model.parameters(), lr=1e-4, **settings)
        self.train(20)

    @property
    def state(self):
        return {"model": self.model, "optim": self.optimizer}

    def train(self, count=1):
        for _ in range(count):
            for parameter in self.model.parameters():
                parameter.grad = torch.randn_like(parameter) * 0.01
            self.optimizer.step()

    def snapshot(self):
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}, {
            number: {name: tensor.clone() for name, tensor in kept.items()}
            for number, kept in self.optimizer.state_dict()["state"].items()
        }


def committed(store, training, steps, commit="commit"):
    """Commit that many consecutive steps; what each holds."""
    held = {}
    for step in steps:
        training.train()
        held[step] = training.snapshot()
        made = getattr(store, commit)(training.state, step=step)
        if commit == "commit_async":
            made.result()
    return held


def check(store, held):
    for step, (model, moments) in held.items():
        found = store.checkout(step)
        assert_same(dict(found["model"]), model)
        assert_same(found["optim"]["state"], moments)


def codecs(store):
    catalog = store._parts.catalog
    return [chunk.codec for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)]


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store", compression="best", chunk_bytes=1 << 16) as opened:
        yield opened


@pytest.mark.parametrize("commit", ["commit", "commit_async"])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_consecutive_steps_are_computed_again(store, cls, dtype, commit):
    training = Training(cls, dtype)
    held = committed(store, training, range(3), commit)
    first, *others = [store.find(step).new_bytes for step in range(3)]
    assert all(size < 0.5 * first for size in others)
    assert ADAM in codecs(store)
    check(store, held)


def deepest(store):
    """How many chunks rest on each other, one below the other."""
    catalog = store._parts.catalog
    lying = {chunk.digest: chunk for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)}

    def depth(digest):
        return max((1 + depth(base) for base in lying[digest].bases), default=0)

    return max(map(depth, lying))


def test_chains_end(store):
    held = committed(store, Training(), range(12))
    assert 2 < deepest(store) <= 5
    check(store, held)
    assert store.verify().ok


def test_a_chunk_that_must_not_weigh_on_a_reader_is_stored_without(store, monkeypatch):
    monkeypatch.setattr("ckptstore.chunkstore.needs.DEFAULT_BUDGET", 1 << 12)
    check(store, committed(store, Training(), range(3)))
    assert ADAM not in codecs(store)


def test_nothing_is_made_of_what_is_damaged(store, tmp_path):
    training = Training()
    committed(store, training, [0])
    for pack in tmp_path.glob("store/packs/*/*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
        pack.write_bytes(data)
    check(store, committed(store, training, [1]))


def test_steps_apart_are_not(store):
    training = Training()
    committed(store, training, [0])
    training.train()
    held = committed(store, training, [2])
    assert ADAM not in codecs(store)
    check(store, held)


def test_other_levels_leave_it(tmp_path):
    for level in ("none", "fast", "auto"):
        with ckptstore.open(tmp_path / level, compression=level) as store:
            check(store, committed(store, Training(), range(2)))
            assert ADAM not in codecs(store)


def test_what_others_were_made_of_outlives_its_commit(store):
    held = committed(store, Training(), range(8))
    store.gc(keep=KeepEvery(3), grace=0)
    assert store.steps() == [0, 3, 6]
    check(store, {step: held[step] for step in store.steps()})
    assert store.verify().ok


def test_a_lost_catalog_is_rebuilt(tmp_path):
    with ckptstore.open(tmp_path / "store", compression="best") as store:
        held = committed(store, Training(), range(4))
    for file in (tmp_path / "store").glob("catalog.sqlite*"):
        file.unlink()
    ckptstore.rebuild_catalog(tmp_path / "store")
    with ckptstore.open(tmp_path / "store") as store:
        check(store, held)


def test_numbers_that_are_all_alike(store):
    training = Training()
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.zero_()
            for moment in ("exp_avg", "exp_avg_sq"):
                training.optimizer.state[parameter][moment].zero_()
    store.commit(training.state, step=0)
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    training.optimizer.step()
    held = {1: training.snapshot()}
    store.commit(training.state, step=1)
    check(store, held)
