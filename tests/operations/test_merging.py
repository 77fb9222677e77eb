from collections import OrderedDict

import pytest

import ckptstore
from ckptstore.format.grid import Division
from ckptstore.operations.ranks.merging import Merging
from ckptstore.operations.ranks.outlines import RankState
from ckptstore.operations.ranks.reports import Report
from ckptstore.state.tree import flatten
from ckptstore.state.values import decode

MODEL = {f"layers.{number}": {"weight": number, "bias": 0.5} for number in range(300)}


def outlines(store, rank, state, replicated=()):
    return RankState(store._parts, rank, lambda: flatten(state, replicated=replicated)).outlines()


def test_what_is_the_same_is_sent_in_the_same_bytes(tmp_path):
    with ckptstore.open(tmp_path) as store:
        one = outlines(store, 0, {"model": MODEL, "position": 7})
        model = MODEL | {"layers.150": {"weight": 1, "bias": 0.5}}
        other = outlines(store, 1, {"loader": {"seed": 1}, "model": model, "position": 7})
    assert len(one) > 30
    assert len({*one} - {*other}) <= 6


def test_only_where_ranks_differ_they_write_for_themselves(tmp_path):
    with ckptstore.open(tmp_path) as store:
        outlined = [outlines(store, rank, {"model": MODEL, "seeds": {"own": rank // 2, "all": 3}}) for rank in range(6)]
    assigned = Merging().assign(outlined)
    assert {each.own for each in assigned} == {frozenset({"seeds/own"})}
    common = [path for each in assigned for path in each.common]
    assert len(common) == len(set(common)) == 601
    loads = [len(each.common) for each in assigned]
    assert max(loads) - min(loads) < 10  # as many bytes, not values


class Loader:
    """Judges itself what it loads."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize(("more", "own"), [({}, set()), ({"k": 1}, {"loader/k"})])
def test_what_all_who_have_an_object_have_of_it_is_stored_once(tmp_path, more, own):
    states = [{"loader": Loader(seed=1)}, {"loader": Loader(seed=1, **more)}, {"model": MODEL}]
    with ckptstore.open(tmp_path) as store:
        outlined = [outlines(store, rank, state) for rank, state in enumerate(states)]
    assert {each.own for each in Merging().assign(outlined)} == {frozenset(own)}


@pytest.mark.parametrize(("more", "path"), [({"k": 1}, "loader/k"), ({"inner": {"k": 1}}, "loader/inner/k")])
def test_some_may_lack_what_is_replicated(tmp_path, more, path):
    states = [{"loader": Loader(seed=1, **more)}, {"loader": Loader(seed=1)}]
    with ckptstore.open(tmp_path) as store:
        outlined = [outlines(store, rank, state, [path]) for rank, state in enumerate(states)]
    first, second = Merging().assign(outlined)
    assert first.own == second.own == frozenset()
    assert path in first.common - second.common


def merged(tmp_path, *states):
    """Paths that are each rank's own, and what stands beside the keys of "x"."""
    with ckptstore.open(tmp_path) as store:
        outlined = [outlines(store, rank, {"x": state}) for rank, state in enumerate(states)]
    merging = Merging()
    own = {path for each in merging.assign(outlined) for path in each.own}
    paths = [f"0/{path}" if own else path for path in ("x/a", "x/b")] + ["1/x/b"]
    manifest = merging.manifest(Report([], {}, {}, dict.fromkeys(paths, (0, 0)), b""), Division(4096, halved=True))
    return own, [decode(x.attributes["vars"], path) for path, x in manifest.containers.items() if path.endswith("x")]


def ordered(items, **beside):
    made = OrderedDict(items)
    vars(made).update(beside)
    return made


def test_what_stages_have_beside_their_keys_comes_together(tmp_path):
    first = OrderedDict({"": {"version": 1}, "a": {"version": 2}})
    second = OrderedDict({"": {"version": 1}, "b": {"version": 3}})
    own, beside = merged(tmp_path, ordered({"a": 0}, _metadata=first), ordered({"b": 0}, _metadata=second))
    assert own == set()
    assert beside == [{"_metadata": OrderedDict({**first, **second})}]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"": {"version": 1}}, {"": {"version": 2}}), ({"": 1}, OrderedDict({"": 1})), (1, 2), ([1], [2]), ({"": {}}, 1)],
)
def test_what_contradicts_itself_is_each_ranks_own(tmp_path, one, other):
    own_and_beside = merged(tmp_path, ordered({"a": 0}, seen=one), ordered({"b": 0}, seen=other))
    assert own_and_beside == ({"x"}, [{"seen": one}, {"seen": other}])
