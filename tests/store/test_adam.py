from __future__ import annotations

from contextlib import contextmanager
from math import prod

import pytest
import torch
from torch import nn

import ckptstore
from ckptstore import KeepEvery, Store
from ckptstore.chunkstore import ChunkStore, ChunkWriter, jobs, windows, writer
from ckptstore.chunkstore.needs import Way
from ckptstore.format.manifest import chunk_digests
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import Recording

DELTA, ADAM = 3, 4


class Training:
    def __init__(self, cls=torch.optim.AdamW, dtype=torch.float32, lr=1e-4, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(200, 300, bias=False), nn.Linear(100, 200, bias=False)).to(dtype)
        self.optimizer = cls(self.model.parameters(), lr=lr, **settings)
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
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.72), (torch.bfloat16, 0.8)])
def test_consecutive_steps_are_computed_again(store, cls, dtype, share, commit):
    training = Training(cls, dtype, lr=1e-4 if dtype is torch.float32 else 1e-1)
    held = committed(store, training, range(3), commit)
    first, *others = [store.find(step).new_bytes for step in range(3)]
    assert all(size < 0.86 * first for size in others)
    assert sum(others) < share * 2 * first
    assert ADAM in codecs(store)
    check(store, held)


def deepest(store):
    """How many chunks rest on each other, one below the other."""
    catalog = store._parts.catalog
    lying = {chunk.digest: chunk for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)}

    def depth(digest):
        return max((1 + depth(base) for base in lying[digest].bases), default=0)

    return max(map(depth, lying))


def work(store, step):
    """How many chunks who reads a commit decodes, a computed one counting less, to how many it has."""
    catalog = store._parts.catalog
    entries = store.manifest(step).values()
    wanted = {digest for entry in entries if entry.chunks for digest in chunk_digests(entry, 16)}
    places = catalog.locate(list(wanted)).values()
    return sum(0.8 if place.codec == ADAM else 1 for place in places) / len(wanted)


def test_chains_end_and_no_commit_is_much_to_read(store):
    held = committed(store, Training(), range(12))
    assert deepest(store) == 2  # weights on second moments that were computed
    assert all(1.2 < work(store, step) < 1.5 for step in range(1, 12))
    sizes = [store.find(step).new_bytes for step in range(12)]
    assert sum(sizes[1:]) < 0.72 * 11 * sizes[0]
    assert max(sizes[1:]) < 0.8 * sizes[0]
    check(store, held)
    assert store.verify().ok


def chunks_of_weights(store, step):
    catalog = store._parts.catalog
    weights = [entry for path, entry in store.manifest(step).items() if path.startswith("model/")]
    wanted = {digest for entry in weights for digest in chunk_digests(entry, 16)}
    lying = [chunk for pack in catalog.packs() for chunk in catalog.pack_chunks(pack.name)]
    return [chunk for chunk in lying if chunk.digest in wanted]


def codecs_of_weights(store, step):
    return {chunk.codec for chunk in chunks_of_weights(store, step)}


@pytest.mark.parametrize(("dtype", "lr"), [(torch.float32, 1e-8), (torch.bfloat16, 1e-4)])
def test_small_differences_are_smaller_than_what_takes_turns(store, dtype, lr):
    held = committed(store, Training(dtype=dtype, lr=lr), range(4))
    found = [codecs_of_weights(store, step) for step in range(1, 4)]
    assert ADAM in codecs(store)
    assert all(DELTA in each and ADAM not in each for each in found)
    assert [{DELTA}, {DELTA}] == [found[0], found[2]]
    check(store, held)


def test_what_is_never_computed_does_not_wait(store):
    """Of two models, one makes several steps between commits."""
    slow, quick = Training(), Training()
    for step in range(3):
        slow.train(2)
        quick.train()
        store.commit(slow.state | {"other": quick.state}, step=step)
        assert step == 0 or DELTA in codecs_of_weights(store, step)
    assert ADAM in codecs(store)


def test_a_chunk_of_ones_leaves_the_others_their_room(store):
    """What it is stored as is tiny, and what changes in it is not."""
    generator = torch.Generator().manual_seed(0)
    state = {"model": {"ones": torch.ones(1 << 14)}}
    state["model"] |= {str(n): torch.randn(1 << 14, generator=generator) for n in range(8)}
    for step in range(2):
        store.commit(state, step=step)
        for tensor in state["model"].values():
            tensor.add_(torch.randn(1 << 14, generator=generator) * 1e-4)
    kinds = [chunk.codec for chunk in chunks_of_weights(store, 1)]
    assert kinds.count(DELTA) >= 5


class Elsewhere(Training):
    """What changes weights is not Adam alone."""

    def train(self, count=1):
        super().train(count)
        for parameter in self.model.parameters():
            parameter.data += torch.randn_like(parameter) * 1e-4


def test_what_adam_did_not_make_is_a_difference_as_ever(store):
    held = committed(store, Elsewhere(), range(3))
    assert codecs_of_weights(store, 1) == {DELTA}  # it was their turn
    check(store, held)


@contextmanager
def recorded(store):
    """The store through a storage that counts."""
    parts = store._parts
    recording = Recording(parts.storage)
    chunks = ChunkStore(recording, parts.catalog, parts.config, compression="best")
    with Store(chunks, "main") as counted:
        yield counted, recording


def beneath(store, step):
    """Bytes stored of all that a commit's leaves are and rest on."""
    catalog = store._parts.catalog
    entries = store.manifest(step).values()
    found = catalog.locate({digest for entry in entries if entry.chunks for digest in chunk_digests(entry, 16)})
    return sum(place.length for place in found.values())


def parts_of(snapshot):
    model, moments = snapshot
    return model, *moments.values()


def elsewhere(training):
    """Moments and weights in tensors that no chunk can be decoded to."""
    model, moments = training.snapshot()
    state = {"model": model, "optim": {"state": moments}}
    for place in parts_of((model, moments)):
        place |= {name: tensor.t().contiguous().t() for name, tensor in place.items() if tensor.dim() > 1}
    return state


@pytest.mark.parametrize("into", ["fresh", "strided"])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_what_chunks_share_is_read_once(store, step, into, monkeypatch):
    monkeypatch.setattr(jobs, "BATCH_BYTES", 1)
    training = Training()
    held = committed(store, training, range(6))
    with recorded(store) as (counted, recording):
        counted.manifest(step)
        before = recording.read
        if into == "fresh":
            check(counted, {step: held[step]})
            assert recording.read - before == beneath(store, step)
        else:
            live = elsewhere(training)
            counted.checkout(step, into=live, strict=False)
            for part, expected in zip(
                (live["model"], *live["optim"]["state"].values()), parts_of(held[step]), strict=True
            ):
                assert_same({name: tensor.contiguous() for name, tensor in part.items()}, expected)
            assert recording.read - before <= beneath(store, step)


@pytest.mark.parametrize("budget", [1_200_000, 1_500_000, 4 << 20])
def test_a_checkout_of_a_chain_keeps_to_its_budget(store, budget):
    held = committed(store, Training(), range(6))
    for step in held:
        found = store.checkout(step, memory_budget_bytes=budget)
        assert_same(dict(found["model"]), held[step][0])
        assert_same(found["optim"]["state"], held[step][1])


def test_a_commit_reads_what_it_is_made_of_once(store, monkeypatch):
    monkeypatch.setattr(writer, "_BATCH_BYTES", 1)
    monkeypatch.setattr(windows, "COPIES", 1)
    training = Training()
    committed(store, training, range(2))
    with recorded(store) as (counted, recording):
        committed(counted, training, [2])
        first = sum(prod(entry.shape) * 4 for path, entry in store.manifest(1).items() if path.endswith("exp_avg"))
        assert recording.read <= beneath(store, 1) + first


class Idle(Training):
    """First moments stay zero, and with a learning rate of zero only second ones are new."""

    def train(self, count=1):
        super().train(count)
        for parameter, kept in self.optimizer.state.items():
            kept["exp_avg"].zero_()
            parameter.grad = None


@pytest.mark.parametrize("cls", [Training, Idle])
def test_weights_that_stay_make_no_endless_run(store, monkeypatch, cls):
    """With a learning rate of zero only moments are new."""
    sizes, real = list[int](), ChunkWriter._encoded

    def encoded(self, batch, *rest):
        sizes.append(sum(len(piece.data) for _, piece in batch))
        return real(self, batch, *rest)

    monkeypatch.setattr(ChunkWriter, "_encoded", encoded)
    training = cls()
    training.optimizer.param_groups[0] |= {"lr": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(windows, "COPIES", 1 << 16)
        held = committed(store, training, range(3))
    assert max(sizes) <= 4 << 16
    assert len(sizes) > 10 or cls is Idle
    check(store, held)


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


def test_moments_that_are_one_tensor(store):
    training = Training()
    moment = torch.zeros(300, 200)
    state = training.optimizer.state_dict()
    state["state"][0] |= {"exp_avg": moment, "exp_avg_sq": moment}
    training.optimizer.load_state_dict(state)
    for step, (model, moments) in committed(store, training, range(2)).items():
        found = store.checkout(step)
        assert_same(dict(found["model"]), model)
        for name in ("exp_avg", "exp_avg_sq"):
            assert_same(found["optim"]["state"][0][name], moments[0][name])


@pytest.mark.parametrize("betas", [(1.0, 0.999), (0.9, 1.5), (1e200, 0.9), (-0.5, 0.9)])
def test_betas_that_no_optimizer_takes(store, betas):
    training = Training()
    held = committed(store, training, range(1))
    training.train()
    held[1] = training.snapshot()
    for group in training.optimizer.param_groups:
        group["betas"] = betas
    store.commit(training.state, step=1)
    check(store, held)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor always keeps denormal numbers")
def test_denormal_moments_that_a_huge_step_makes_count(store):
    """Some threads take them for zero; what these read must be the same."""
    training = Training(torch.optim.Adam, eps=1e-15, foreach=False)
    training.optimizer.param_groups[0]["lr"] = 100.0
    for parameter, kept in training.optimizer.state.items():
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 1e-14)
        kept["exp_avg"].copy_(torch.randn_like(parameter) * 1e-38)
        kept["exp_avg_sq"].copy_(torch.rand_like(parameter) * 1e-31)
    held = {}
    for step in range(2):
        for parameter in training.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        training.optimizer.step()
        held[step] = training.snapshot()
        store.commit(training.state, step=step)
    torch.set_flush_denormal(True)
    try:
        check(store, held)
    finally:
        torch.set_flush_denormal(False)


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


def test_what_turns_out_too_heavy_to_read_rests_on_less(store, monkeypatch):
    committed(store, Training(), range(2))
    assert ADAM in codecs(store)
    before, is_light, heavy = len(codecs(store)), Way.is_light, []

    def as_it_came_out(way, place, bases):
        if place.codec == ADAM:
            heavy.append(place)
        return place.codec != ADAM and is_light(way, place, bases)

    monkeypatch.setattr(Way, "is_light", as_it_came_out)
    held = committed(store, Training(), range(2, 5))
    assert heavy
    assert ADAM not in codecs(store)[before:]
    check(store, held)
    assert store.verify().ok
