"""What a hostile review found: each was wrong once."""

import math
import os
import shutil
import sqlite3
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

import ckptstore
from ckptstore import (
    BudgetTooSmall,
    CatalogError,
    GcRefused,
    InvalidArgument,
    MissingData,
    StateError,
    StateMismatch,
    StepNotFound,
    StepProtected,
    TagNotFound,
    UnsupportedLeaf,
)
from ckptstore.format import document
from ckptstore.integrations.safetensors import export_safetensors
from ckptstore.operations.loading import load
from ckptstore.operations.loading.load import fill
from ckptstore.storage.local import LocalStorage
from ckptstore.testing.equality import assert_same

OTHER: Any = 5
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors


@pytest.mark.parametrize("into", [torch.nn.Linear(1, 1), [torch.zeros(1)]])
def test_an_app_state_to_fill_that_is_no_dict(store, into):
    store.commit({"w": torch.zeros(1)}, step=0)
    with pytest.raises(InvalidArgument, match=r'fill is a (Linear|list): give a dict of names, as \{"model": model\}'):
        store.checkout(0, into=into)


@pytest.mark.parametrize("shape", [(0, 2**31, 2**31), (2**61, 0), (1,) * 65, (0,) + (1,) * 64])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_a_tensor_of_a_form_that_numpy_lacks_is_refused(store, shape, layout):
    dense = torch.empty(shape)
    store.commit({"w": 1}, step=0)
    state = {"w": dense if layout == "dense" else torch.sparse_coo_tensor(torch.tensor([[0]]), dense[None])}
    for commit in (store.commit, store.commit_async):
        with pytest.raises(UnsupportedLeaf, match=r"'w.*of shape \[.*reshape"):
            commit(state, step=1)
    assert store.steps() == [0]


@pytest.mark.parametrize("shape", [(0, 2**31, 2**31), (2**62, 0), (1,) * 64])
def test_a_tensor_of_the_largest_form(store, shape):
    state = {"w": torch.empty(shape, dtype=torch.bool).T if len(shape) == 2 else torch.empty(shape, dtype=torch.bool)}
    store.commit(state, step=0)
    live = {"w": torch.empty_like(state["w"])}
    for found in (store.checkout(0), store.checkout(0, into=live), {"w": store.read(0, "w")}):
        assert_same(found, state)


def test_a_freed_storage_is_refused(store):
    weight = torch.full((1000,), 3.0)
    weight.untyped_storage().resize_(40)
    with pytest.raises(UnsupportedLeaf, match=r"'w'.*storage was freed"):
        store.commit({"w": weight}, step=0)
    store.commit({"w": torch.zeros(1000)}, step=0)
    with pytest.raises(UnsupportedLeaf, match="storage was freed"):
        store.checkout(0, into={"w": weight})


def test_a_record_names_that_very_commit(store):
    old = store.commit({"w": 1}, step=20)
    store.delete(20)
    anew = store.commit({"w": 2}, step=20)
    for use in (store.checkout, store.delete, store.manifest, lambda ref: store.tag("x", ref)):
        with pytest.raises(StepNotFound, match="step 20"):
            use(old)
    assert store.checkout(anew) == {"w": 2}


def test_nothing_is_written_when_the_budget_is_too_small(store):
    store.commit({"a": torch.ones(3), "z": torch.zeros(100_000)}, step=0)
    live = {"a": torch.full((3,), 5.0), "z": torch.ones(200_000)[::2]}
    with pytest.raises(BudgetTooSmall):
        store.checkout(0, into=live, memory_budget_bytes=1)
    assert live["a"].eq(5).all()
    assert live["z"].eq(1).all()


def test_only_extra_states_are_extra_states(store):
    class Named(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.register_buffer("my_extra_state", torch.zeros(size))

    store.commit({"m": Named(3)}, step=0)
    with pytest.raises(StateMismatch, match="my_extra_state"):
        store.checkout(0, into={"m": Named(4)})


def test_nan_in_metadata_is_no_damage(store):
    store.commit({"w": 1}, step=0, metadata={"loss": math.nan})
    assert store.verify().ok


@pytest.mark.parametrize(
    "options",
    [{"chunk_bytes": 4e6}, {"chunk_bytes": "4M"}, {"catalog": "mysql://x"}, {"catalog": "sqlite+foo:///x"}],
)
def test_a_failed_open_founds_nothing(tmp_path, options):
    with pytest.raises(InvalidArgument):
        ckptstore.open(tmp_path / "store", **options)
    assert not (tmp_path / "store" / "ckptstore.json").exists()


ARRANGED = [
    torch.arange(48.0).reshape(8, 6)[:, ::2].t(),
    torch.randn(2, 8, 6, 4).to(memory_format=torch.channels_last)[:, ::2],
    np.arange(48.0).reshape(8, 6).T[::2],
    np.arange(48.0).reshape(8, 6)[::-1].T,
    torch.randn(4, 6).t(),
]


@pytest.mark.parametrize("number", range(len(ARRANGED)))
def test_both_ways_to_commit_store_the_same(store, number):
    first = store.commit({"w": ARRANGED[number]}, step=0)
    assert store.commit_async({"w": ARRANGED[number]}, step=0).result() == first


@pytest.mark.parametrize("metadata", [{"seed": 2**64}, {"name": "\ud800"}, {"\ud800": 1}])
def test_metadata_that_cannot_be_stored_is_refused_at_once(store, metadata):
    with pytest.raises(InvalidArgument, match="metadata"):
        store.commit_async({"w": 1}, step=0, metadata=metadata)
    assert store.steps() == []


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000])
def test_steps_beyond_all_numbers(store, digits):
    store.commit({"w": 1}, step=0)
    with pytest.raises(InvalidArgument, match=r"2\*\*63"):
        store.find(digits)


def test_gc_wants_a_policy(store):
    store.commit({"w": 1}, step=0)
    with pytest.raises(InvalidArgument, match="KeepLast"):
        store.gc(3)
    with pytest.raises(InvalidArgument, match="'3'"):
        ckptstore.KeepLast("3")  # type: ignore[arg-type]


def test_gc_counts_what_dead_writers_left(tmp_path):
    script = """
import os, sys, numpy, ckptstore.storage.local as local, ckptstore
real = local.publish
local.publish = lambda a, b: os._exit(9) if "manifests" in str(b) else real(a, b)
ckptstore.open(sys.argv[1]).commit({"w": numpy.random.rand(100_000)}, step=1)
"""
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "s"], check=False).returncode == 9
    with ckptstore.open(tmp_path / "s") as store:
        from ckptstore.testing.audit import expire_sessions

        expire_sessions(tmp_path / "s")
        report = store.gc(grace=0)
        assert report.packs == 1
        assert report.freed_bytes > 600_000


def test_one_memory_cannot_take_two_contents(store):
    model, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    before = other.weight.detach().clone()
    store.commit({"model": model, "w": torch.nn.Parameter(torch.full((4, 4), 7.0))}, step=0)
    with pytest.raises(StateMismatch, match="w: tied to model/weight"):
        store.checkout(0, into={"model": other, "w": other.weight})
    assert other.weight.equal(before)
    store.commit({"model": model, "w": model.weight}, step=1)
    store.checkout(1, into={"model": other, "w": other.weight})
    assert other.weight.equal(model.weight)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("kept", ["embedding", "head"])
def test_what_a_target_ties_is_there_once_it_is_there_under_one_name(store, kept):
    """As in files of model hubs, which leave out all names of a tied weight but one."""
    saved, model = torch.full((4, 4), 7.0), Tied()
    store.commit({"model": {f"{kept}.weight": saved}}, step=0)
    store.checkout(0, into={"model": model})
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.equal(saved)
    state = Tied().state_dict()
    store.checkout(0, into={"model": state})
    assert all(tensor.equal(saved) for tensor in state.values())


def test_what_a_target_ties_and_a_commit_lacks_altogether_is_missing(store):
    model, tensor = Tied(), torch.zeros(4)
    before = model.head.weight.detach().clone()
    store.commit({"model": {"other": torch.zeros(4, 4)}, "w": tensor}, step=0)
    with pytest.raises(StateMismatch, match=r"(?s)not in the commit.*head.weight.*strict=False"):
        store.checkout(0, into={"model": model})
    with pytest.raises(StateMismatch, match=r"(?s)not in the commit:\n    v\n"):
        store.checkout(0, into={"w": tensor, "v": tensor})
    assert model.head.weight.equal(before)


def test_overlapping_targets_are_refused(store):
    buffer = torch.zeros(8)
    store.commit({"a": torch.full((5,), 1.0), "b": torch.full((5,), 2.0)}, step=0)
    with pytest.raises(
        StateMismatch, match=r"(?s)b: shares memory with a.*leave all but one of those that share memory out by paths="
    ):
        store.checkout(0, into={"a": buffer[:5], "b": buffer[3:]})
    square = torch.zeros(5, 5)
    with pytest.raises(StateMismatch, match="shares memory"):
        store.checkout(0, into={"a": square[0], "b": square[:, 0]})
    assert not buffer.any()
    assert not square.any()


class Judging:
    """Gets the commit's state whole."""

    def __init__(self):
        self.best = self.now = torch.zeros(4)
        self.loaded: dict[str, Any] = {}

    def state_dict(self):
        return {"now": self.now, "best": self.best}

    def load_state_dict(self, state):
        self.loaded = state


def test_who_judges_its_state_gets_no_tie_of_its_own(store):
    owner = Judging()
    store.commit({"x": {"now": torch.ones(4)}}, step=0)
    store.checkout(0, into={"x": owner})
    assert list(owner.loaded) == ["now"]


OVERLAPPING = {
    "a window": lambda: (whole := torch.randn(8, 8), whole[:4, :4], whole[0]),
    "views of one buffer": lambda: (flat := torch.randn(20), flat[:16].view(4, 4), flat[15:], flat[::3]),
    "bfloat16": lambda: (flat := torch.randn(20).bfloat16(), flat[3:15:2], flat[1:7]),
    "a complex tensor's parts": lambda: (both := torch.randn(5, dtype=torch.complex128), both.real, both.imag),
    "an element": lambda: (history := torch.arange(10.0), history[-1]),
    "numpy's": lambda: (array := np.random.default_rng(0).random((4, 6)), array[::-1, 1:], array[2]),
    "float64 and its halves": lambda: (doubles := torch.randn(6, dtype=torch.float64), doubles.view(torch.int32)[1:5]),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_targets_that_overlap_take_what_they_were_committed_as(store, kind):
    state, target = dict(enumerate(OVERLAPPING[kind]())), dict(enumerate(OVERLAPPING[kind]()))
    store.commit({"x": state}, step=0)
    target[0][...] = 0
    store.checkout(0, into={"x": target})
    assert all(np.array_equal(as_array(target[key]), as_array(state[key])) for key in state)
    other = state | {1: state[1].copy() if isinstance(state[1], np.ndarray) else state[1].clone()}
    other[1][...] = 7
    store.commit({"x": other}, step=1)
    with pytest.raises(StateMismatch, match="shares memory with"):
        store.checkout(1, into={"x": target})
    assert all(np.array_equal(as_array(target[key]), as_array(state[key])) for key in state)


def test_torch_hears_of_what_a_checkout_puts_into_tensors_that_overlap(store):
    """So that autograd does, and commits in the background."""
    flat = torch.ones(8, requires_grad=True)
    store.commit({"flat": torch.zeros(8), "head": torch.zeros(4)}, step=0)
    loss = (flat * flat).sum()
    store.checkout(0, into={"flat": flat.detach(), "head": flat.detach()[:4]})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_that_overlap_stay_as_they_were_when_another_one_is_lost(tmp_path):
    """As all do, since nothing is read before it is known where it lies."""
    flat, other = torch.zeros(3000), torch.zeros(3000)
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"flat": torch.ones(3000), "head": torch.ones(1000)}, step=0)
        store.commit({"flat": torch.ones(3000), "head": torch.ones(1000), "other": torch.rand(3000)}, step=1)
        newest = store._parts.catalog.packs()[-1].name
        (tmp_path / "store" / "packs" / newest[:2] / f"{newest}.pack").unlink()
        store.repair()
        with pytest.raises(MissingData):
            store.checkout(1, into={"flat": flat, "head": flat[:1000], "other": other})
    assert not flat.any()


@pytest.mark.parametrize("level", ["none", "best"])
def test_no_two_threads_fill_one_memory(tmp_path, monkeypatch, level):
    """A chunk that rests on another one is made where it goes, in two steps."""
    filled: list[Any] = []

    def watched(chunks, jobs, **options):
        filled.extend(job.target for job in jobs)
        return fill(chunks, jobs, **options)

    flat, target = torch.randn(9000), torch.zeros(9000)
    monkeypatch.setattr(load, "fill", watched)
    with ckptstore.open(tmp_path / "store", compression=level, chunk_bytes=4096) as store:
        for step in range(3):
            flat += 1e-4
            store.commit({"flat": flat, "head": flat[:5000], "tail": flat[3000:]}, step=step)
            store.checkout(step, into={"flat": target, "head": target[:5000], "tail": target[3000:]})
            assert target.equal(flat)
    ranges = sorted((array.data_ptr(), array.data_ptr() + array.nbytes) for array in filled[-3:])
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))


def as_array(array):
    return array if isinstance(array, np.ndarray) else array.to(torch.complex128).resolve_conj().numpy()


def test_lazily_conjugated_targets_that_overlap_are_refused(store):
    store.commit({"a": torch.full((5,), 1j), "b": torch.full((5,), 2j)}, step=0)
    buffer = torch.zeros(8, dtype=torch.complex64)
    for a, b in ((buffer[:5], buffer[:5].conj()), (buffer[:5].conj(), buffer[3:].conj())):
        with pytest.raises(StateMismatch, match="shares memory"):
            store.checkout(0, into={"a": a, "b": b})
    assert not buffer.any()
    store.commit({"a": torch.ones(5), "b": torch.full((4,), 2j)}, step=1)
    with pytest.raises(StateMismatch, match="shares memory"):
        store.checkout(1, into={"a": buffer[:5].conj().imag, "b": buffer[4:]})
    more = torch.zeros(9, dtype=torch.complex64)
    store.checkout(1, into={"a": more[:5].conj().imag, "b": more[5:].conj()})
    assert more.tolist() == [-1j] * 5 + [-2j] * 4


def test_targets_beside_each_other_in_one_buffer_are_fine(store):
    buffer, array = torch.zeros(5, 2), np.zeros((2, 10))
    store.commit({"a": torch.full((5,), 1.0), "b": torch.full((5,), 2.0)}, step=0)
    store.checkout(0, into={"a": buffer[:, 0], "b": buffer[:, 1]})
    assert buffer.tolist() == [[1, 2]] * 5
    store.commit({"a": np.ones((2, 5)), "b": np.full((2, 5), 2.0)}, step=1)
    store.checkout(1, into={"a": array[:, ::2], "b": array[:, 1::2]})
    assert array.tolist() == [[1, 2] * 5] * 2


def test_a_target_that_overlaps_itself_is_refused(store):
    windows = torch.zeros(10).unfold(0, 3, 1)
    store.commit({"a": torch.arange(24.0).reshape(8, 3)}, step=0)
    with pytest.raises(StateMismatch, match="share memory"):
        store.checkout(0, into={"a": windows})
    with pytest.raises(InvalidArgument, match="share memory"):
        store.read(0, "a", out=windows)


def test_a_catalog_is_of_one_store(tmp_path):
    catalog = f"sqlite:///{tmp_path}/catalog.sqlite"
    weights = {"w": torch.randn(1000)}
    with ckptstore.open(tmp_path / "a", catalog=catalog) as store:
        store.commit(weights, step=1)
    with pytest.raises(CatalogError, match="is of another store"):
        ckptstore.open(tmp_path / "b", catalog=catalog)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(CatalogError, match="is of another store"):
        ckptstore.open(tmp_path / "a", catalog=catalog)


def test_several_are_deleted_together_or_not_at_all(store):
    for step in range(4):
        store.commit({"w": step}, step=step)
    store.tag("best", 3)
    for others, error in (((3,), StepProtected), ((7,), StepNotFound), ((1, "bset"), TagNotFound)):
        with pytest.raises(error):
            store.delete(0, *others)
        assert store.steps() == [0, 1, 2, 3]
    store.delete(0, "main@1", store.find(0), 0)
    assert store.steps() == [2, 3]


def test_a_lost_catalog_is_not_an_empty_store(tmp_path):
    with ckptstore.open(tmp_path / "a") as store:
        store.commit({"w": 1}, step=1)
    (tmp_path / "a" / "catalog.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(CatalogError, match=r"holds commits|no catalog|can not be read|unable to open"):
            ckptstore.open(tmp_path / "a")
        with ckptstore.open(tmp_path / "a", read_only=True) as store:
            assert store.checkout(1) == {"w": 1}


def test_a_copied_store_is_a_store(tmp_path):
    with ckptstore.open(tmp_path / "a") as store:
        store.commit({"w": 1}, step=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with ckptstore.open(tmp_path / "b") as copy:
        assert copy.checkout(1) == {"w": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": b""},
        {"dtype": "float64"},
        {"itemsize": 1, "shape": (400,), "chunk_shape": (400,)},
        {"chunk_shape": (0,)},
        {"order": (3,)},
        {"shape": (2**50,), "chunk_shape": (2**50,)},
        {"shape": (-1,)},
    ],
    ids=str,
)
def test_a_manifest_that_contradicts_itself_is_damage(store, changes):
    commit = store.commit({"w": torch.arange(100.0)}, step=0)
    written = document.decode(store._parts.catalog.manifest(commit.id), "x")
    entry = replace(written.manifest.entries["w"], **changes)
    hostile = replace(written, manifest=replace(written.manifest, entries={"w": entry}))
    with sqlite3.connect(f"{store.url}/catalog.sqlite") as database:
        database.execute("UPDATE manifests SET data = ?", (document.encode(hostile),))
    database.close()
    with pytest.raises(ckptstore.CkptStoreError):
        store.checkout(0)
    with pytest.raises(ckptstore.CkptStoreError):
        store.checkout(0, into={"w": torch.arange(100.0)})
    assert not store.verify().ok


def _transposed():
    sparse = torch.tensor([[0, 1.0], [0, 0]]).to_sparse_csr()
    return sparse, sparse.t()


def _of_two_sizes():
    indices, values = torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0])
    return [torch.sparse_coo_tensor(indices, values, (size, size)) for size in (2, 5)]


def _tracked_or_not():
    parameter = torch.nn.Parameter(torch.eye(3).to_sparse())
    return parameter, parameter.detach()


def _of_two_scales():
    one, other = (torch.quantize_per_tensor(torch.arange(4.0), scale, 1, torch.qint8) for scale in (0.5, 0.1))
    return one, other.set_(one.untyped_storage(), 0, (4,), (1,))


@pytest.mark.parametrize("made", [_transposed, _of_two_sizes, _tracked_or_not, _of_two_scales])
def test_tensors_of_the_same_parts_that_are_not_the_same_stay_two(store, made):
    state = dict(zip("ab", made(), strict=True))
    store.commit({"s": state}, step=0)
    for back in (store.checkout(0)["s"], store.read(0, "s")):
        assert_same(back, state)


def test_tied_sparse_tensors_are_tied_again(store):
    sparse = torch.eye(4).to_sparse()
    store.commit({"a": sparse, "b": sparse, "c": torch.eye(4).to_sparse()}, step=0)
    state = store.checkout(0)
    assert state["a"] is state["b"]
    assert state["a"] is not state["c"]


SETS = """
import sys, ckptstore
from ckptstore.testing.states import Frozen, Point
points = [Point("a", 1), Point("b", 2), Point("b", frozenset(map(Frozen, "xyz"))), Point("é", 4)]
state = {"s": set(points), "f": [frozenset(points), set(map(Frozen, points)), {(point, 1) for point in points}]}
with ckptstore.open(sys.argv[1]) as store:
    store.commit(state, step=0)
    assert store.checkout(0) == state
    live = {"s": set(points), "f": [frozenset(points), set(map(Frozen, points)), {(point, 1) for point in points}]}
    store.checkout(0, into=live)
    assert live == state
"""


def test_the_same_sets_are_the_same_commit_in_every_process(tmp_path):
    for seed in range(4):
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", SETS, str(tmp_path / "store")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class Masked(torch.nn.Module):
    mask: torch.Tensor

    def __init__(self, kept, layout=torch.sparse_coo):
        super().__init__()
        self.register_buffer("mask", (torch.arange(9.0) < kept).float().reshape(3, 3).to_sparse(layout=layout))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_tensors_of_another_number_of_elements_are_made_anew(store, layout):
    store.commit({"m": Masked(5, layout).mask, "n": {"mask": Masked(7, layout).mask}}, step=0)
    live: dict = {"m": Masked(2, layout).mask, "n": {"mask": Masked(3, layout).mask}}
    store.checkout(0, into=live)
    assert live["m"].to_dense().equal(Masked(5, layout).mask.to_dense())
    assert live["n"]["mask"].to_dense().equal(Masked(7, layout).mask.to_dense())


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_with_sparse_buffers_is_filled(store, strict):
    store.commit({"m": Masked(5)}, step=0)
    model = Masked(2)
    store.checkout(0, into={"m": model}, strict=strict)
    assert model.mask.to_dense().equal(Masked(5).mask.to_dense())


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_a_module_whose_compressed_buffers_have_another_number_of_elements_is_refused(store, layout, strict):
    """Torch copies nothing into these."""
    store.commit({"w": torch.ones(3), "m": Masked(5, layout)}, step=0)
    live: dict[str, Any] = {"w": torch.zeros(3), "m": Masked(2, layout)}
    for paths in (None, ["w", "m/mask"]):
        with pytest.raises(StateMismatch, match=r"m/mask/values: float32\[5\] in the commit, float32\[2\] in"):
            store.checkout(0, into=live, strict=strict, paths=paths)
    assert not live["w"].any()
    assert live["m"].mask.to_dense().equal(Masked(2, layout).mask.to_dense())
    live["m"] = Masked(5, layout)
    live["m"].mask.values().zero_()
    store.checkout(0, into=live, strict=strict)
    assert live["m"].mask.to_dense().equal(Masked(5, layout).mask.to_dense())


def test_quantised_tensors_take_the_scale_of_the_commit(store):
    def quantised(scale, value=1.0):
        return torch.quantize_per_tensor(torch.full((80,), value), scale, 3, torch.qint8)

    store.commit({"q": quantised(0.1)}, step=0)
    live = {"q": quantised(0.2, 5.0)}
    store.checkout(0, into=live)
    assert live["q"].q_scale() == pytest.approx(0.1)
    assert live["q"].int_repr().equal(quantised(0.1).int_repr())


def test_a_sparse_target_of_another_size_or_dtype_is_refused(store):
    store.commit({"s": torch.eye(4).to_sparse()}, step=0)
    for other in (torch.eye(5).to_sparse(), torch.eye(4, dtype=torch.float64).to_sparse()):
        with pytest.raises(StateMismatch, match="s"):
            store.checkout(0, into={"s": other})


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.gc(grace="5"),
        lambda store: store.gc(grace=None),
        lambda store: store.gc(ckptstore.KeepBest(OTHER)),
        lambda store: store.checkout(0, paths=5),
        lambda store: store.checkout(0, paths=[5]),
        lambda store: store.checkout(0, memory_budget_bytes="5"),
        lambda store: store.read(0, "w", memory_budget_bytes=5.5),
        lambda store: store.diff(0, 1, values=True, memory_budget_bytes="5"),
        lambda store: store.commit({"w": torch.ones(8)}, step=2, progress=5),
        lambda store: ckptstore.open(OTHER),
    ],
)
def test_an_argument_of_another_type(store, act):
    store.commit({"w": torch.zeros(8)}, step=0)
    store.commit({"w": torch.ones(8)}, step=1)
    with pytest.raises(InvalidArgument, match=r"5|None"):
        act(store)
    assert store.steps() == [0, 1]


def test_a_policy_that_keeps_nothing_is_refused(store):
    """Such as one that asks for a metric whose name was mistyped."""
    store.commit({"w": 1}, step=0, metadata={"loss": 1.0})
    store.tag("best", 0)
    with pytest.raises(
        GcRefused, match=r"lost.*keeps none of the 1 commits of run 'main'.*nearest: loss.*KeepLast\(0\)"
    ):
        store.gc(ckptstore.KeepBest("lost"))
    with pytest.raises(TypeError):
        ckptstore.KeepLast(1) | OTHER
    store.untag("best")
    assert store.steps() == [0]
    assert store.gc(ckptstore.KeepLast(0)).deleted == (0,)


def test_one_glob_may_be_exported(store, tmp_path):
    store.commit({"model": {"w": torch.ones(3), "b": torch.zeros(1)}}, step=0)
    export_safetensors(store, 0, tmp_path / "w.safetensors", paths="model/w")
    assert load_file(tmp_path / "w.safetensors").keys() == {"model/w"}


def test_a_fork_is_remembered_when_its_origin_is_gone(store):
    store.commit({"w": 1}, step=7)
    store.commit({"w": 2}, step=8, run="side", parent=7)
    store.delete(7)
    store.gc(grace=0)
    assert {run.name: run.forked_from for run in store.runs()} == {"main": None, "side": "main@7"}


def test_what_a_notebook_shows_is_short(store):
    commit = store.commit({"w": torch.ones(3000)}, step=0)
    handle = store.commit_async({"w": torch.zeros(3000)}, step=1)
    assert repr(handle).startswith("<commit in the background, ")
    handle.result()
    assert repr(handle) == "<commit in the background, done>"
    shown = "<diff of main@0 to main@1: 0 added, 0 removed, 1 changed, 0 moved, 0 unchanged, 12000 bytes>"
    assert repr(store.diff(0, 1)) == shown
    assert "run='main', step=0" in repr(commit)
    assert commit.document not in repr(commit)


@pytest.mark.parametrize(
    "shown",
    [lambda w: w, lambda w: w[5:], lambda w: w.data, lambda w: torch.from_numpy(w.numpy())],
    ids=["itself", "a view", "its data", "unseen by torch"],
)
@pytest.mark.parametrize(
    "given", [{}, {"compression": "none"}, {"compression": "best"}, {"key_file": "key", "encrypt": True}], ids=str
)
def test_a_tensor_that_is_written_to_while_it_is_committed(tmp_path, monkeypatch, shown, given):
    (tmp_path / "key").write_text("a passphrase")
    monkeypatch.chdir(tmp_path)
    store = ckptstore.open(tmp_path / "ckpts", **given)
    state = {"steady": torch.randn(3000), "w": torch.randn(3000), "n": torch.zeros(2)}
    put = LocalStorage.put

    def changed(self, key, parts):
        shown(state["w"]).add_(1)
        put(self, key, parts)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "put", changed)
        with pytest.raises(
            StateError, match=r"^'w' was changed while it was committed: .* when commit\(\) has returned"
        ):
            store.commit(state, step=1)
    assert store.steps() == []
    store.commit(state, step=1)
    assert torch.equal(store.checkout(1)["w"], state["w"])
    assert store.verify().problems == ()


@pytest.mark.parametrize("compression", ["none", "auto"])
@pytest.mark.parametrize("shown", [lambda w: w, lambda w: w.T, lambda w: w[::2]], ids=["rows", "columns", "some rows"])
def test_what_other_processes_write_to_is_committed_as_it_was_read(tmp_path, monkeypatch, compression, shown):
    """As in Hogwild training: each chunk as it was at some moment, but no commit that cannot be read."""
    shared = torch.randn(60, 60).share_memory_()
    put = LocalStorage.put

    def changed(self, key, parts):
        shared.data.add_(1)  # torch counts no changes of other processes
        put(self, key, parts)

    monkeypatch.setattr(LocalStorage, "put", changed)
    store = ckptstore.open(tmp_path / "ckpts", compression=compression)
    expected = shared.clone()
    store.commit({"w": shown(shared)}, step=1)
    assert torch.equal(store.checkout(1)["w"], shown(expected))
    assert store.verify().problems == ()
