import ckptstore
from ckptstore.operations.ranks.merging import Merging
from ckptstore.operations.ranks.outlines import RankState
from ckptstore.state.tree import flatten

MODEL = {f"layers.{number}": {"weight": number, "bias": 0.5} for number in range(300)}


def outlines(store, rank, state):
    return RankState(store._parts, rank, lambda: flatten(state)).outlines()


def test_what_is_the_same_is_told_in_the_same_bytes(tmp_path):
    with ckptstore.open(tmp_path) as store:
        one = outlines(store, 0, {"model": MODEL, "position": 7})
        model = MODEL | {"layers.150": {"weight": 1, "bias": 0.5}}
        other = outlines(store, 1, {"loader": {"seed": 1}, "model": model, "position": 7})
    assert len(one) > 30
    assert len({*one} - {*other}) <= 6


def test_only_where_ranks_differ_they_write_for_themselves(tmp_path):
    with ckptstore.open(tmp_path) as store:
        told = [outlines(store, rank, {"model": MODEL, "seeds": {"own": rank // 2, "all": 3}}) for rank in range(6)]
    assigned = Merging().assign(told)
    assert {each.own for each in assigned} == {frozenset({"seeds/own"})}
    common = [path for each in assigned for path in each.common]
    assert len(common) == len(set(common)) == 601
    loads = [len(each.common) for each in assigned]
    assert max(loads) - min(loads) < 10  # as many bytes, not values
