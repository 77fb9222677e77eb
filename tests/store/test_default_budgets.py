"""What a store writes, it reads without being told a memory budget, whatever rests on what."""

from __future__ import annotations

import uuid

import pytest
import torch
from torch import nn

import ckptstore
from ckptstore.chunkstore import deriving
from ckptstore.chunkstore.needs import DEFAULT_BUDGET, Way, granted
from ckptstore.chunkstore.reliance import Reliance
from ckptstore.errors import BudgetTooSmall
from ckptstore.format.packs import pack_key
from ckptstore.testing.equality import assert_same

MIB = 1 << 20


class Training:
    """A model of one parameter, as large as a chunk."""

    def __init__(self, chunk):
        torch.manual_seed(0)
        self.model = nn.ParameterDict({"w": nn.Parameter(torch.randn(chunk // 4) * 0.02)})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def trained(self):
        """The state after another step."""
        self.model["w"].grad = torch.randn_like(self.model["w"]) * 1e-3
        self.optimizer.step()
        return {"model": self.model, "optim": self.optimizer}

    def snapshot(self):
        return [tensor.clone() for tensor in (self.model["w"].data, *self.optimizer.state[self.model["w"]].values())]


class Places:
    """Where stores are opened: the same one again, however often."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "key").write_text("correct horse battery staple")

    def open(self, place, sealed, chunk, **options):
        if place == "remote":
            url, options["catalog"] = f"memory://{self.folder.name}", f"sqlite:///{self.folder}/catalog.db"
        else:
            url = str(self.folder / "store")
        if sealed == "sealed":
            options |= {"encrypt": True, "key_file": self.folder / "key"}
        return ckptstore.open(url, **({"compression": "best", "chunk_bytes": chunk} | options))


@pytest.fixture
def places(tmp_path):
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    return Places(folder)


def committed(store, training, steps):
    held = {}
    for step in steps:
        state = training.trained()
        store.commit(
            state | {"other": torch.randint(256, (12 * len(training.model["w"]),), dtype=torch.uint8)}, step=10 * step
        )
        store.commit(state, step=10 * step + 1)
        held[10 * step + 1] = training.snapshot()
    return held


def frames(store):
    catalog = store._parts.catalog
    return [chunk for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)]


def check(store, held):
    for step, (weight, *moments) in held.items():
        found = store.checkout(step)
        assert_same(found["model"]["w"].data, weight)
        assert_same(list(found["optim"]["state"][0].values()), moments)
        assert_same(store.read(step, "model/w", index=slice(1, 3)).data, weight[1:3])
    old, new = list(held)[-2:]
    numbers = {change.path: change.numbers for change in store.diff(old, new, values=True).changes}
    assert numbers["model/w"].max_abs == (held[new][0].double() - held[old][0].double()).abs().max()


def check_gc(store, held):
    for step in held:
        store.delete(step - 1)
    store.gc(grace=0, most=1)
    assert store.gc(grace=0, most=1).rewritten
    check(store, held)
    assert store.verify().ok


@pytest.mark.parametrize(
    ("place", "sealed", "chunk", "steps"),
    [
        ("local", "plain", 4, 5),
        ("local", "sealed", 4, 5),
        ("remote", "plain", 4, 5),
        ("remote", "sealed", 4, 5),
        ("local", "sealed", 8, 4),
        ("remote", "plain", 8, 4),
        ("local", "plain", 16, 3),
        ("remote", "sealed", 16, 3),
    ],
)
def test_everything_that_is_written_is_read(places, place, sealed, chunk, steps):
    with places.open(place, sealed, chunk * MIB) as store:
        held = committed(store, Training(chunk * MIB), range(steps))
        check(store, held)
        if chunk < 16:
            check_gc(store, held)


def test_what_weighs_more_is_read_all_the_same(places, monkeypatch):
    """Stores of old hold such chains."""
    training, where = Training(8 * MIB), ("local", "sealed", 8 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(Way, "is_light", lambda *_: True)
        patch.setattr(deriving, "_was_computed", lambda _: False)
        patch.setattr(deriving, "differs_little", lambda *_: False)
        patch.setattr(Reliance, "bears", lambda *_: True)
        with places.open(*where) as store:
            held = committed(store, training, range(4))
    with places.open(*where) as store:
        with pytest.raises(BudgetTooSmall):
            store.checkout(31, memory_budget_bytes=DEFAULT_BUDGET)
        held |= committed(store, training, [4])
        check(store, held)
        check_gc(store, held)
        damage(places.folder, max(frames(store), key=lambda frame: (len(frame.base), frame.length)))
        lost = store.repair().lost
        assert lost
        whole = {step: held[step] for step in held if not any(leaf.startswith(f"main@{step} ") for leaf in lost)}
        assert len(whole) > 1
        check(store, whole)


def damage(folder, frame):
    path = folder / "store" / pack_key(frame.pack)
    data = bytearray(path.read_bytes())
    data[frame.offset + 5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("sealed", ["plain", "sealed"])
@pytest.mark.parametrize("place", ["local", "remote"])
def test_chunks_of_the_usual_size_are_computed_again(places, place, sealed):
    with places.open(place, sealed, 4 * MIB) as store:
        training = Training(4 * MIB)
        for step in range(2):
            store.commit(training.trained(), step=step)
        first, second = (store.find(step).new_bytes for step in range(2))
        assert second < 0.7 * first


@pytest.mark.parametrize("level", ["best", "auto"])
def test_differences_are_as_readable_as_what_is_whole(places, level):
    chunk = 64 * MIB
    with places.open("local", "plain", chunk, compression=level) as store:
        weights = torch.randn(chunk // 4) * 0.02
        for step in range(2):
            store.commit({"w": weights + step * 1e-6}, step=step)
            assert_same(store.read(step, "w", index=slice(3)), (weights + step * 1e-6)[:3])
        assert not [frame for frame in frames(store) if frame.base]


def test_no_chunk_takes_whatever_it_claims():
    assert granted(None, 1, "one chunk") == DEFAULT_BUDGET
    assert granted(None, 1 << 30, "one chunk", 1 << 20) == (1 << 30) + (1 << 20)
    with pytest.raises(BudgetTooSmall, match="one chunk needs 3221225472"):
        granted(None, 3 << 30, "one chunk")
    assert granted(4 << 30, 3 << 30, "one chunk") == 4 << 30
