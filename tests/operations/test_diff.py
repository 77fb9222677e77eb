import copy
import math
from collections import OrderedDict, defaultdict, deque
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.format.grid import Grid
from ckptstore.format.manifest import Container, Manifest, TensorEntry, ValueEntry, chunk_digests, entry_bytes
from ckptstore.operations.diff import compare
from ckptstore.operations.structure import Retied, restructured, retied

PATHS = st.sampled_from(["a", "b", "c", "d", "e"])


def tensor(content, shape=(6,)):
    """Six elements in chunks of two; `content` says what is in each."""
    digests = b"".join(bytes([number]) * 16 for number in content[: len(Grid(shape, (2,)))])
    return TensorEntry("torch", "float32", 4, shape, (2,), digests)


TENSORS = st.builds(tensor, st.lists(st.integers(0, 2), min_size=3, max_size=3), st.sampled_from([(6,), (5,)]))
VALUES = st.builds(ValueEntry, st.sampled_from([1, True, 1.0, 0.0, -0.0, None, "x", {"float": "7ff8"}]))
ENTRIES = st.dictionaries(PATHS, TENSORS | VALUES, max_size=5)


def is_same(old, new):
    if isinstance(old, TensorEntry) or isinstance(new, TensorEntry):
        return old == new
    return repr(old.value) == repr(new.value)


@given(ENTRIES, ENTRIES)
def test_every_leaf_is_listed_once_and_rightly(old, new):
    changes = compare(Manifest(old, {}), Manifest(new, {}), 16)
    by_path = {change.path: change for change in changes}
    assert len(by_path) == len(changes)
    for path in old.keys() & new.keys():
        assert (path in by_path) != is_same(old[path], new[path])
    added = {path for path in new.keys() - old.keys() if by_path[path].kind == "added"}
    moved = {path: by_path[path].moved_from for path in new.keys() - old.keys() - added}
    removed = {change.path for change in changes if change.kind == "removed"}
    assert len(set(moved.values())) == len(moved)
    assert removed | set(moved.values()) == old.keys() - new.keys()
    assert not removed & set(moved.values())
    for path, origin in moved.items():
        assert new[path] == old[origin]
    left = [old[path] for path in removed if isinstance(old[path], TensorEntry)]
    assert not [path for path in added if isinstance(new[path], TensorEntry) and new[path] in left]


@given(TENSORS, TENSORS)
def test_changed_bytes_are_those_of_changed_chunks(old, new):
    changes = compare(Manifest({"a": old}, {}), Manifest({"a": new}, {}), 16)
    sizes = Grid(new.shape, new.chunk_shape).sizes(4)
    pairs = zip(chunk_digests(old, 16), chunk_digests(new, 16), sizes, strict=True)
    if old == new:
        assert changes == []
    elif old.shape != new.shape:
        assert changes[0].changed_bytes == entry_bytes(new)
    else:
        assert changes[0].changed_bytes == sum(size for before, after, size in pairs if before != after)


def numbers_of(store, old, new, **options):
    store.commit({"x": {"t": old}}, step=0)
    store.commit({"x": {"t": new}}, step=1)
    (change,) = store.diff(0, 1, values=True, **options).changes
    return change.numbers


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
OTHERS = [torch.int8, torch.int64, torch.uint16, torch.uint64, torch.bool, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
@pytest.mark.parametrize("budget", [1 << 14, 1 << 27])
def test_numbers_are_those_of_the_whole_tensor(store, dtype, budget):
    torch.manual_seed(0)
    old, new = (torch.randn(90, 70).mul(3).to(torch.int if dtype is torch.uint64 else dtype).to(dtype) for _ in "ab")
    if dtype is torch.bool:
        old, new = torch.rand(90, 70) < 0.5, torch.rand(90, 70) < 0.5
    found = numbers_of(store, old, new, memory_budget_bytes=budget)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    old, new = old.to(wide).flatten(), new.to(wide).flatten()
    distance = (new - old).abs()
    assert found.max_abs == distance.max()
    assert found.mean_abs == pytest.approx(distance.mean().item())
    assert found.relative_l2 == pytest.approx((distance.norm() / old.norm().abs()).item())
    assert found.cosine == pytest.approx((torch.vdot(old, new).real / (old.norm() * new.norm()).abs()).item())


def test_numbers_of_numpy_whatever_the_byte_order(store):
    old, new = np.arange(2000, dtype=">f4"), np.arange(2000, dtype=">f4") + 1
    found = numbers_of(store, old, new)
    assert (found.max_abs, found.mean_abs) == (1, 1)


def test_numbers_across_dtypes_and_tiny_tensors(store):
    found = numbers_of(store, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0], dtype=torch.float64))
    assert (found.max_abs, found.mean_abs, found.relative_l2) == (2, 1, pytest.approx(2 / math.sqrt(5)))


def test_numbers_from_real_to_complex_and_back(store):
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([3 + 4j, 4 + 0j])
    for old, new, norm in ((one, other, 5), (other, one, math.sqrt(41))):
        with ckptstore.open(f"{store.url}-{new.dtype}") as own:
            found = numbers_of(own, old, new)
        assert (found.max_abs, found.mean_abs, found.relative_l2) == (4, 2, pytest.approx(4 / norm))
        assert found.cosine == pytest.approx(25 / (5 * math.sqrt(41)))


def test_nothing_is_divided_by_zero(store):
    found = numbers_of(store, torch.zeros(3), torch.ones(3))
    assert found.relative_l2 == math.inf
    assert math.isnan(found.cosine)


def test_nan_stays_nan(store):
    found = numbers_of(store, torch.zeros(3000), torch.zeros(3000).index_fill(0, torch.tensor([5]), math.nan))
    assert math.isnan(found.max_abs)
    assert math.isnan(found.mean_abs)


def test_what_has_no_numbers(store):
    store.commit({"x": {"a": torch.ones(3), "b": 1, "c": torch.ones(2), "d": np.array(["a"])}}, step=0)
    store.commit({"x": {"a": torch.ones(4), "b": 2, "c": 5, "d": np.array(["b"])}}, step=1)
    assert [change.numbers for change in store.diff(0, 1, values=True).changes] == [None] * 4


def test_a_budget_below_two_chunks_is_refused(store):
    with pytest.raises(ckptstore.BudgetTooSmall, match="10000"):
        numbers_of(store, torch.zeros(5000), torch.randn(5000), memory_budget_bytes=5000)


def test_progress_reaches_its_total(store):
    calls = []
    numbers_of(store, torch.zeros(9000), torch.randn(9000), progress=lambda *step: calls.append(step))
    assert calls[-1] == ("diff", 72000, 72000)


def test_a_summary(store):
    weights = torch.randn(3000)
    store.commit({"m": {"w": weights, "kept": torch.ones(50)}, "lr": 0.1}, step=0)
    store.commit({"n": {"w": weights}, "m": {"kept": torch.ones(50)}, "lr": 0.2}, step=1)
    diff = store.diff(0, 1)
    assert [(change.kind, change.path, change.moved_from) for change in diff.changes] == [
        ("moved", "n/w", "m/w"),
        ("changed", "lr", ""),
    ]
    assert (diff.old.step, diff.new.step, diff.unchanged) == (0, 1, 1)
    assert diff.of("moved") == diff.changes[:1]
    assert diff.changed_bytes == diff.changes[1].changed_bytes < 20
    assert replace(diff, changes=()).changed_bytes == 0


class Point(NamedTuple):
    x: object
    y: object


STRUCTURES = {
    "a list, a tuple": ([torch.ones(2)], (torch.ones(2),)),
    "another class": (Point(1, 2), {"x": 1, "y": 2}),
    "another attribute": (deque([1], maxlen=2), deque([1], maxlen=3)),
    "another factory": (defaultdict(int, a=1), defaultdict(None, a=1)),
    "another order": ({"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3, "b": 2}),
    "another order, and a key more": ({"a": 1, "b": 2}, {"b": 2, "n": 3, "a": 1}),
    "an empty one that came": ({"a": 1}, {"a": 1, "b": OrderedDict()}),
    "an empty one that went": ({"a": 1, "b": {}}, {"a": 1}),
    "an empty one in place of a leaf": (1, {}),
    "empty ones": (OrderedDict(), {}),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("turned", [False, True])
def test_what_holds_leaves_is_reported(store, name, turned):
    old, new = reversed(STRUCTURES[name]) if turned else STRUCTURES[name]
    store.commit({"x": {"s": old, "w": torch.ones(3)}}, step=0)
    store.commit({"x": {"s": new, "w": torch.ones(3)}}, step=1)
    diff = store.diff(0, 1)
    (change,) = diff.restructured
    assert change.path in ("x/s", "x/s/b")
    assert (change.old, change.new) == tuple(
        store.manifest(step).manifest.containers.get(change.path) for step in (0, 1)
    )
    assert change.reordered == name.startswith("another order")
    assert "1 restructured" in repr(diff)
    assert not diff.retied


@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_keys_that_come_and_go_are_no_other_order(old, new):
    both = [[key for key in keys if key in old and key in new] for keys in (old, new)]
    manifests = (Manifest({}, {"": Container("dict", tuple(keys))}) for keys in (old, new))
    assert [change.reordered for change in restructured(*manifests)] == [True] * (both[0] != both[1])


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_scale_of_a_quantised_tensor_is_reported(store):
    for step, scale in enumerate((0.5, 0.25)):
        store.commit({"x": {"q": torch.quantize_per_tensor(torch.ones(10) * scale, scale, 0, torch.qint8)}}, step=step)
    diff = store.diff(0, 1)
    assert not diff.changes
    (change,) = diff.restructured
    assert (change.path, change.old.attributes["scale"], change.new.attributes["scale"]) == ("x/q", 0.5, 0.25)


def test_states_that_load_alike_differ_in_nothing(store):
    state = {"a": [1, {"b": (2, Point(3, torch.ones(2)))}], "c": OrderedDict(d={}), "e": deque(maxlen=3)}
    for step in (0, 1):
        store.commit({"x": copy.deepcopy(state)}, step=step)
    diff = store.diff(0, 1)
    assert (diff.changes, diff.restructured, diff.retied) == ((), (), ())
    assert "restructured" not in repr(diff)
    assert "retied" not in repr(diff)


def test_ties_that_came_and_went_are_reported(store):
    one, other = torch.ones(30), torch.ones(30)
    store.commit({"x": {"a": one, "b": one, "c": other, "d": other}}, step=0)
    store.commit({"x": {"a": one, "b": one, "c": other, "d": one, "e": other}}, step=1)
    store.commit({"x": {"a": one, "b": other.clone(), "c": other, "d": other}}, step=2)
    diff = store.diff(0, 1)
    pair, rest, three = ("x/a", "x/b"), ("x/c", "x/d"), ("x/a", "x/b", "x/d")
    assert diff.retied == (
        Retied("x/a", pair, three),
        Retied("x/b", pair, three),
        Retied("x/c", rest, ()),
        Retied("x/d", rest, three),
    )
    assert [change.path for change in diff.changes] == ["x/e"]
    assert "4 retied" in repr(diff)
    assert store.diff(0, 2).retied == (Retied("x/a", pair, ()), Retied("x/b", pair, ()))
    assert store.diff(2, 0).retied == (Retied("x/a", (), pair), Retied("x/b", (), pair))


GROUPS = st.lists(st.sets(PATHS, min_size=1), max_size=3).map(
    lambda sets: [sorted(own - set().union(*sets[:place])) for place, own in enumerate(sets)]
)


@given(GROUPS, GROUPS, st.randoms(), st.sets(PATHS), st.sets(PATHS))
def test_ties_are_listed_of_leaves_that_are_tied_to_others(old, new, chance, came, went):
    manifests, mates = [], []
    for groups, gone in ((old, came), (new, went)):
        here = [[path for path in group if path not in gone] for group in groups]
        for group in here:
            chance.shuffle(group)
        paths = [path for path in "abcde" if path not in gone]
        chance.shuffle(paths)
        ties = tuple(tuple(group) for group in here if len(group) > 1)
        manifests.append(Manifest(dict.fromkeys(paths, ValueEntry(1)), {}, ties))
        mates.append({path: set(group) for group in ties for path in group})
    common = manifests[0].entries.keys() & manifests[1].entries.keys()
    expected = {
        path: tuple((each.get(path, {path}) & common) - {path} for each in mates)
        for path in common
        if mates[0].get(path, {path}) & common != mates[1].get(path, {path}) & common
    }
    found = list(retied(*manifests))
    assert [change.path for change in found] == [path for path in manifests[1].entries if path in expected]
    assert {
        change.path: (set(change.old) - {change.path}, set(change.new) - {change.path}) for change in found
    } == expected


def test_many_leaves_that_are_tied_take_no_longer_for_each(store):
    paths = [f"w{number}" for number in range(50_000)]
    entries = dict.fromkeys(paths, tensor([1, 1, 1]))
    one, other = tuple(paths), tuple(reversed(paths))
    assert list(retied(Manifest(entries, {}, (one,)), Manifest(entries, {}, (other,)))) == []
    halves = Manifest(entries, {}, (one[::2], one[1::2]))
    assert len(list(retied(Manifest(entries, {}, (one,)), halves))) == len(paths)


def test_bytes_of_what_is_tied_count_once(store):
    weight = torch.zeros(3000)
    for step in range(2):
        store.commit({"x": {"a": weight + step, "n": step}}, step=10 + step)
        both = weight + step
        store.commit({"x": {"a": both, "b": both, "n": step}}, step=step)
    alone, tied = store.diff(10, 11), store.diff(0, 1)
    assert [change.repeated for change in tied.changes] == [False, True, False]
    assert tied.changed_bytes == alone.changed_bytes <= tied.new_bytes


@pytest.mark.parametrize("tied", ["a", "zz"])
def test_what_is_tied_to_what_did_not_change_is_no_new_byte(store, tied):
    weight = torch.arange(3000.0)
    store.commit({"x": {"z": weight}}, step=0)
    store.commit({"x": dict.fromkeys(sorted(["z", tied]), weight)}, step=1)
    diff = store.diff(0, 1)
    assert [(change.path, change.repeated) for change in diff.changes] == [(f"x/{tied}", True)]
    assert diff.changed_bytes == 0


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


HOSTILE: list[Any] = [msgspec.msgpack.Ext(5, b"x"), {"dict": {b"k": 1}}, {b"k": [1]}, [1, 2], nested(400)]


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: str(key)[:10])
def test_keys_that_nobody_writes_stop_nothing(key):
    old, new = (Manifest({}, {"": Container("dict", keys)}) for keys in ((key, "a"), ("a", key)))
    assert [change.reordered for change in restructured(old, new)] == [True]


def test_the_budget_that_is_named_suffices(tmp_path):
    """What is held while chunks are read grows with the budget."""
    with ckptstore.open(tmp_path / "store", compression="best", chunk_bytes=1 << 18) as store:
        w = torch.randn(200, 300)
        for step in range(2):
            store.commit({"w": w + step * 1e-3}, step=step)
        with pytest.raises(ckptstore.BudgetTooSmall) as small:
            store.diff(0, 1, values=True, memory_budget_bytes=1)
        least = int(str(small.value).rpartition(" ")[2])
        with pytest.raises(ckptstore.BudgetTooSmall) as more:
            store.diff(0, 1, values=True, memory_budget_bytes=least)
        assert "beside" in str(more.value)
        enough = int(str(more.value).rpartition(" ")[2])
        assert store.diff(0, 1, values=True, memory_budget_bytes=enough).changes


@pytest.mark.parametrize("factor", [1e-310, 1e-200, 1e-160, 1e160, 1e200, 1e300])
@pytest.mark.parametrize("before", ["zeros", "ones", "nothing"])
def test_numbers_of_the_tiny_and_the_huge(store, factor, before):
    """Whose squares are no float64; whatever else is in the tensor before them."""
    old, new = (torch.rand(100_000, dtype=torch.float64) + 1 for _ in range(2))
    fore = {"zeros": torch.zeros(70_000), "ones": torch.ones(70_000), "nothing": torch.zeros(0)}[before].double()
    old, new = torch.cat([fore, old]), torch.cat([fore, new])
    found = numbers_of(store, old * factor, new * factor)
    assert found.max_abs == pytest.approx(float((new - old).abs().max()) * factor, rel=1e-9, abs=0)
    assert found.mean_abs == pytest.approx(float((new - old).abs().mean()) * factor, rel=1e-9, abs=0)
    assert found.relative_l2 == pytest.approx(float((new - old).norm() / old.norm()))
    assert found.cosine == pytest.approx(float(old.dot(new) / old.norm() / new.norm()))


def test_a_mean_of_small_and_huge_distances(store):
    small, huge = torch.ones(70_000, dtype=torch.float64), torch.full((70_000,), 1e300, dtype=torch.float64)
    found = numbers_of(store, torch.zeros(140_000, dtype=torch.float64), torch.cat([small, huge]))
    assert found.mean_abs == pytest.approx(5e299)


def test_numbers_of_what_grew_beyond_measure(store):
    found = numbers_of(
        store, torch.full((9,), 1e-300, dtype=torch.float64), torch.full((9,), 1e300, dtype=torch.float64)
    )
    assert found.relative_l2 == math.inf
    assert found.cosine == pytest.approx(1)
