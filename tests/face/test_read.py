"""Reading a part of a commit: what numpy and torch give for the same index, from the chunks that hold it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ckptstore
from ckptstore import BudgetTooSmall, InvalidArgument, PathNotFound, StepNotFound, TagNotFound
from ckptstore.chunkstore import ChunkStore
from ckptstore.opening import open_parts
from ckptstore.store import Store
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import Recording
from ckptstore.testing.states import Point

SHAPES = [(), (5000,), (70, 33), (3, 5, 700), (2, 3, 4, 5, 6, 7), (0, 4), (4, 0), (1, 1, 9), (2, 3000)]


def numbered(shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=dtype).reshape(shape)


@st.composite
def indices(draw, shape: tuple[int, ...]) -> Any:
    """What basic indexing takes, without steps below 0."""
    ints = [st.integers(-extent, extent - 1) if extent else st.nothing() for extent in shape]
    bounds = [st.none() | st.integers(-2 * extent - 1, 2 * extent + 1) for extent in shape]
    slices = [st.builds(slice, bound, bound, st.none() | st.integers(1, 5)) for bound in bounds]
    count = draw(st.integers(0, len(shape)))
    items = [draw(ints[dim] | slices[dim]) for dim in range(count)]
    if draw(st.booleans()):
        at = draw(st.integers(0, count))
        rest = range(len(shape) - (count - at), len(shape))
        items[at:] = [..., *(draw(ints[dim] | slices[dim]) for dim in rest)]
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """A store with arrays of every shape, of torch and numpy, of several layouts."""
    with ckptstore.open(tmp_path_factory.mktemp("store"), chunk_bytes=4096) as store:
        state = {
            str(shape): {
                "torch": numbered(shape),
                "backwards": numbered(shape[::-1]).permute(tuple(reversed(range(len(shape))))),
                "complex": torch.view_as_complex(numbered((*shape, 2), torch.float64)),
                "numpy": numbered(shape).numpy().astype([("a", ">i2"), ("b", "<f4")]),
            }
            for shape in SHAPES
        }
        store.commit(state, step=0)
        yield store, state


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), shape=st.sampled_from(SHAPES), kind=st.sampled_from(["torch", "backwards", "complex", "numpy"]))
def test_a_part_is_what_indexing_gives(arrays, data, shape, kind):
    store, state = arrays
    index = data.draw(indices(shape))
    whole = state[str(shape)][kind]
    expected = whole[index].clone() if isinstance(whole, torch.Tensor) else np.array(whole[index])
    path = f"{shape}/{kind}"
    found = store.read(0, path, index=index)
    assert_same(_row_major(found), _row_major(expected))
    out = torch.empty_like(expected) if isinstance(expected, torch.Tensor) else np.empty_like(expected)
    assert store.read(0, path, index=index, out=out) is out
    assert_same(out, expected)


@pytest.mark.parametrize("size", [2, 5000])
def test_a_target_without_memory_is_refused(store, size):
    store.commit({"a": torch.ones(size)}, step=0)
    freed = torch.zeros(size)
    freed.untyped_storage().resize_(0)
    with pytest.raises(InvalidArgument, match="storage was freed"):
        store.read(0, "a", out=freed)

    def refused(tensor):
        with pytest.raises(InvalidArgument, match="outside of its functions"):
            store.read(0, "a", out=tensor)
        return tensor.sum()

    torch.func.grad(refused)(torch.zeros(size))
    torch.func.functionalize(refused)(torch.zeros(size))


@pytest.mark.parametrize("dtype", ["V0", []], ids=str)
def test_a_part_of_elements_without_bytes(tmp_path, dtype):
    array = np.zeros((4, 5), dtype)
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"a": array}, step=0)
        for index in (1, slice(1, 3), (slice(None), 2)):
            assert_same(store.read(0, "a", index=index), array[index])
            assert_same(store.read(0, "a", index=index, out=np.empty_like(array[index])), array[index])


def _row_major(array: Any) -> Any:
    return array.contiguous() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array).reshape(array.shape)


@pytest.mark.parametrize("index", [slice(None, None, -1), "a", 1.0, None, True, [0, 1], (0, 0, 0), (..., ...), 70, -71])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_an_index_that_cannot_be(arrays, index, kind):
    with pytest.raises(InvalidArgument, match=r"index|slice"):
        arrays[0].read(0, f"{(70, 33)}/{kind}", index=index)


@pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), (np.uint8(3), slice(np.int64(2), torch.tensor(9)))])
def test_numbers_of_numpy_and_torch_index_too(arrays, index):
    store, state = arrays
    path = str((70, 33))
    assert_same(store.read(0, f"{path}/torch", index=index), state[path]["torch"][index].clone())


# out


def test_out_may_lie_anyhow(arrays, tmp_path):
    store, state = arrays
    expected = state[str((70, 33))]["torch"][10:60, ::2]
    around = torch.zeros(100, 34, dtype=torch.int32)
    outs = [torch.empty(17, 50, dtype=torch.int32).t(), around[::2, ::2], torch.nn.Parameter(around, False)[:50, :17]]
    for out in outs:
        assert store.read(0, f"{(70, 33)}/torch", index=(slice(10, 60), slice(None, None, 2)), out=out) is out
        assert torch.equal(out, expected)
    mapped = np.lib.format.open_memmap(tmp_path / "out.npy", "w+", state[str((70, 33))]["numpy"].dtype, (70, 33))
    store.read(0, f"{(70, 33)}/numpy", out=mapped)
    mapped.flush()
    assert np.array_equal(np.load(tmp_path / "out.npy"), state[str((70, 33))]["numpy"])


def test_out_of_a_tensor_that_is_tracked(arrays):
    out = torch.zeros(70, 33, dtype=torch.complex128, requires_grad=True)
    assert arrays[0].read(0, f"{(70, 33)}/complex", out=out) is out
    assert torch.equal(out, arrays[1][str((70, 33))]["complex"])
    assert out.is_leaf


OUTS: dict[str, Any] = {
    "dtype": lambda: torch.zeros(70, 33),
    "shape": lambda: torch.zeros(33, 70, dtype=torch.int32),
    "rank": lambda: torch.zeros(70 * 33, dtype=torch.int32),
    "library": lambda: np.zeros((70, 33), np.int32),
    "type": lambda: [[0] * 33] * 70,
    "expanded": lambda: torch.zeros(1, 33, dtype=torch.int32).expand(70, 33),
    "sparse": lambda: torch.zeros(70, 33, dtype=torch.int32).to_sparse(),
    "meta": lambda: torch.zeros(70, 33, dtype=torch.int32, device="meta"),
}


@pytest.mark.parametrize("name", OUTS)
def test_out_that_does_not_fit(arrays, name):
    out = OUTS[name]()
    with pytest.raises(InvalidArgument, match="`out` does not fit"):
        arrays[0].read(0, f"{(70, 33)}/torch", out=out)
    if name not in {"sparse", "meta"}:
        assert not np.any(np.asarray(out))


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, np.matrix])
def test_out_of_a_kind_that_is_indexed_otherwise(arrays, kind):
    plain = np.zeros_like(arrays[1][str((70, 33))]["numpy"])
    with pytest.raises(InvalidArgument, match="give the plain array"):
        arrays[0].read(0, f"{(70, 33)}/numpy", out=plain.view(kind))
    assert plain.tobytes() == bytes(plain.nbytes)


def test_a_read_only_out(arrays):
    out = np.zeros_like(arrays[1][str((70, 33))]["numpy"])
    out.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        arrays[0].read(0, f"{(70, 33)}/numpy", out=out)


# what is read


@pytest.fixture
def recorded(tmp_path):
    """A store of 64 rows of one chunk each, and what its storage was asked."""
    weight = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 4096), np.uint8))
    with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
        store.commit({"w": weight, "other": torch.rand(100_000), "plain": {"lr": 0.1, "text": "x" * 9000}}, step=0)
    parts = open_parts(
        tmp_path / "store",
        catalog=None,
        create=False,
        read_only=True,
        digest="xxh3_128",
        chunk_bytes=4096,
        storage_options=None,
    )
    recording = Recording(parts.storage)
    with Store(ChunkStore(recording, parts.catalog, parts.config), "main") as store:
        yield store, weight, recording


@pytest.mark.parametrize(
    ("index", "chunks"),
    [
        (slice(0, 8), 8),
        (5, 1),
        (..., 64),
        ((slice(None), 0), 64),
        (slice(0, 64, 16), 4),
        ((slice(3, 5), slice(100, 200)), 2),
        (slice(9, 9), 0),
        ((-1, -1), 1),
    ],
)
def test_only_the_chunks_that_hold_it_are_read(recorded, index, chunks):
    store, weight, recording = recorded
    assert torch.equal(store.read(0, "w", index=index), weight[index])
    assert recording.read == chunks * 4096
    assert recording.operations["get_ranges"] <= 1
    assert recording.operations.keys() <= {"get_ranges"}


@pytest.mark.parametrize("path", ["plain/lr", "plain"])
def test_a_value_reads_no_array(recorded, path):
    store, _, recording = recorded
    store.manifest(0)
    assert recording.operations.total() == 0
    store.read(0, path)
    assert recording.read < 9100


def test_neighbours_are_read_together(recorded):
    store, weight, recording = recorded
    state = store.checkout(0, paths="w")
    assert torch.equal(state["w"], weight)
    assert recording.operations == {"get_ranges": 1}


# budget

_MEASURE = """
import json, sys, threading, time
import numpy as np, psutil, torch
import ckptstore
place, size, budget, call = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
process, over = psutil.Process(), threading.Event()
with ckptstore.open(place) as store:
    store.checkout(0, paths="warm")
    out = torch.zeros(size // 4, dtype=torch.float64 if call == "cast" else torch.float32)
    live = {"big": out}
    before = peak = process.memory_info().rss
    def watch():
        global peak
        while not over.wait(0.001):
            peak = max(peak, process.memory_info().rss)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    if call == "read":
        store.read(0, "big", out=out, memory_budget_bytes=budget)
    elif call == "strided":
        store.read(0, "big", index=slice(0, None, 2), out=out[::2], memory_budget_bytes=budget)
    else:
        store.checkout(0, into=live, paths="big", memory_budget_bytes=budget, allow_cast=call == "cast")
    over.set()
    watcher.join()
print(json.dumps([peak - before, float(out.double().sum())]))
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A store with a tensor of 64 MiB that a codec may have made smaller."""
    place = tmp_path_factory.mktemp("big")
    tensor = torch.rand(16 << 20, generator=torch.Generator().manual_seed(0))
    with ckptstore.open(place) as store:
        store.commit({"big": tensor, "warm": {"small": torch.rand(100)}}, step=0)
    return place, tensor


@pytest.mark.parametrize("call", ["read", "strided", "checkout", "cast"])
def test_memory_stays_near_the_budget(big, call):
    place, tensor = big
    budget = 16 << 20
    arguments = [str(place), str(tensor.nbytes), str(budget), call]
    done = subprocess.run([sys.executable, "-c", _MEASURE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, total = json.loads(done.stdout)
    expected = tensor[::2] if call == "strided" else tensor
    assert total == float(expected.double().sum())
    assert grown < 2 * budget + (8 << 20)


def test_a_budget_below_one_chunk(store):
    floats = torch.rand(64, 4096).t().contiguous()
    store.commit({"t": floats}, step=0)
    whole = torch.zeros(4096, 128)[:, ::2]
    with pytest.raises(BudgetTooSmall, match="budget of 100 bytes, but one chunk needs"):
        store.read(0, "t", out=whole, memory_budget_bytes=100)
    store.read(0, "t", out=whole, memory_budget_bytes=8192)
    assert torch.equal(whole, floats)


# trees and values


@pytest.fixture
def tree(store):
    weight = torch.rand(2000)
    state = {
        "a": {"w": weight, "tied": weight, "deep": [{"x": 1}, Point(weight[:5].clone(), "y")]},
        "sparse": torch.eye(60).to_sparse(),
        "number": 0.1,
        "long": list(range(5000)),
        "array": np.arange(3000),
        "": {"/": 5},
    }
    store.commit(state, step=0, metadata={"loss": 2.5, "note": "é"})
    return state


def test_what_is_beneath_a_path(store, tree):
    assert_same(store.read(0, "a"), tree["a"])
    assert_same(store.read(0, "a/deep"), tree["a"]["deep"])
    assert_same(store.read(0, "a/deep/1"), tree["a"]["deep"][1])
    assert_same(store.read(0, "a/deep/0/x"), 1)
    assert_same(store.read(0, ""), tree)
    assert_same(store.read(0, "sparse"), tree["sparse"])
    assert_same(store.read(0, "sparse/values", index=slice(0, 3)), torch.ones(3))
    assert_same(store.read(0, "number"), 0.1)
    assert_same(store.read(0, "long"), tree["long"])
    assert_same(store.read(0, "array"), tree["array"])
    assert_same(store.read(0, '%("")/%2F'), 5)
    found = store.read(0, "a")
    assert found["w"] is found["tied"]


@pytest.mark.parametrize("path", ["number", "long", "a", "sparse"])
@pytest.mark.parametrize("options", [{"index": 0}, {"out": torch.zeros(1)}])
def test_only_arrays_have_parts(store, tree, path, options):
    with pytest.raises(InvalidArgument, match=f"'{path}' is no dense array"):
        store.read(0, path, **options)


def test_the_root_is_not_named_as_near(store):
    store.commit({"q": 1, "w": 2}, step=0)
    for wish in (lambda: store.read(0, "zzz"), lambda: store.checkout(0, paths="zzz")):
        with pytest.raises(PathNotFound, match=r"nearest: q, w$"):
            wish()


def test_names_that_do_not_exist_tell_the_nearest(store, tree):
    with pytest.raises(PathNotFound, match=r"main@0 has no path 'a/v'; nearest: .*a/w"):
        store.read(0, "a/v")
    with pytest.raises(PathNotFound, match="nearest"):
        store.manifest(0)["nothing"]
    with pytest.raises(StepNotFound, match="0"):
        store.read(5, "a")
    with pytest.raises(TagNotFound):
        store.read("best", "a")


@pytest.mark.parametrize("path", [["a/w"], ("a/w", "a"), {"a": 1}, None, 3, torch.ones(9)], ids=repr)
def test_one_path_is_read(store, tree, path):
    refused = rf"^the path is a {type(path).__name__}: give one as text, or several to checkout\(paths=…\)$"
    with pytest.raises(InvalidArgument, match=refused):
        store.read(0, path)


@pytest.mark.parametrize("glob", ["a/*", "**/w", "*", "a/[vw]"])
def test_globs_are_for_checkouts(store, tree, glob):
    for ask in (lambda: store.read(0, glob), lambda: store.manifest(0)[glob]):
        with pytest.raises(PathNotFound, match=r"has no path .*: it is a glob, which checkout\(paths=…\) takes$"):
            ask()


def test_a_commit_can_be_named_in_every_way(store, tree):
    made = store.commit(tree, step=7, run="other")
    store.tag("best", 0)
    for name in (0, "0", "best", "latest", "main@0", "main@best", "main@latest", store.find(0), np.int64(0)):
        assert store.read(name, "number") == 0.1
        assert store.find(name).run == "main"
    assert store.find("other@latest") == made == store.find(made)


def test_a_manifest_tells_the_form_of_every_leaf(store, tree):
    view = store.manifest()
    assert view.commit.metadata == {"loss": 2.5, "note": "é"}
    assert (view.commit.step, view.commit.run, view.commit.leaves) == (0, "main", len(view))
    assert list(view)[:2] == ["a/w", "a/tied"]
    assert (view["a/w"].dtype, view["a/w"].shape, view["a/w"].library) == ("float32", (2000,), "torch")
    assert view["array"].library == "numpy"
    assert view["number"].value == 0.1
    assert "a/w" in view
    assert "a" not in view
    assert view.get("nothing") is None
    assert repr(view) == f"<manifest of main@0: {len(view)} leaves>"
