"""Commits that several processes make together, and checkouts into what they have parts of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.integrations.safetensors import export_safetensors
from ckptstore.testing.audit import assert_nothing_leaked
from ckptstore.testing.states import Colour, Level
from tests.integrations.rank_child import tensors
from tests.integrations.test_dcp_ranks import JOBS, assert_same
from tests.integrations.together_tasks import own_state

AGAIN = "; the same may be committed again"
TWOS = torch.full((3,), 2.0)


@pytest.mark.parametrize(("layout", "count"), JOBS)
def test_every_layout_is_checked_out_into_every_other(crew, store, layout, count):
    ids = crew.do("commit", count, place=store.url, step=7, layout=layout, seed=count)
    assert set(ids) == {store.find(7).id}
    for other, ranks in JOBS:
        found = crew.do("check_out", ranks, place=store.url, step=7, layout=other, seed=count)
        assert found == [[]] * ranks, (other, ranks)
    assert_same(store.checkout(7)["model"], count)
    alone = {"model": {name: torch.zeros_like(tensor) for name, tensor in tensors(count).items()}}
    store.checkout(7, into=alone)
    assert_same(alone["model"], count)
    assert store.verify().problems == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_every_layout_takes_another_dtype(crew, store, dtype):
    crew.do("commit", 4, place=store.url, step=7, layout="grid", seed=4)
    for layout, ranks in JOBS:
        found = crew.do("check_out", ranks, place=store.url, step=7, layout=layout, seed=4, dtype=dtype)
        assert found == [[]] * ranks, (layout, ranks)


def test_a_training_goes_on_in_another_dtype(crew, store):
    dtypes = ["torch.bfloat16", "torch.float32", "torch.bfloat16", "torch.bfloat16"]
    assert crew.do("cast_together", 2, place=store.url) == [[[0.0] * 4, dtypes]] * 2


def test_who_waits_for_ranks_that_may_not_have_been_called_is_told(crew, store):
    (message,), nothing = crew.do("commit_late", 2, place=store.url)
    assert re.match("rank 0 of 2 has waited .* s for the others: all must make this call, without an `if", message)
    assert message.endswith('new_group([torch.distributed.get_rank()], backend="gloo", use_local_synchronization=True)')
    assert nothing == []


def test_every_rank_knows_that_it_saves_beside_training_and_what_it_learned_before(crew, store):
    assert crew.do("commit_at_paces", 2, place=store.url) == [[[[False], [False], [True]], 1]] * 2


def test_the_same_state_is_the_same_commit_whoever_makes_it(crew, store):
    for step, (layout, count) in enumerate(JOBS):
        crew.do("commit", count, place=store.url, step=step, layout=layout, same=False)
    first, *others = (store.find(step) for step in store.steps())
    assert {commit.content for commit in others} == {first.content}
    assert all(commit.new_bytes <= first.new_bytes / 10 for commit in others)
    assert crew.do("commit", 4, place=store.url, step=0, layout="columns", same=False) == [first.id] * 4
    answers = crew.ask("commit", 2, place=store.url, step=0, seed=1)
    assert [answer["error"] for answer in answers] == ["StepExists", "RankFailed"]
    assert AGAIN not in answers[1]["traceback"]


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(("layout", "count"), [("plain", 2), ("rows", 2), ("rows", 1)])
def test_what_is_written_to_meanwhile_is_not_committed(crew, store, layout, count, seen):
    answers = crew.ask("write_while_committing", count, place=store.url, layout=layout, seen=seen)
    assert [answer["error"] for answer in answers] == ["StateError", "RankFailed"][:count]
    assert "'model/x' was changed while it was committed" in answers[0]["traceback"]
    assert store.steps() == []


def test_ranks_bring_back_what_their_commit_lost(crew, store):
    about = {"place": store.url, "layout": "rows", "same": False}
    crew.do("commit", 2, step=0, **about)
    crew.do("commit", 2, step=1, **about)
    made = store.find(0)
    for pack in Path(store.url).rglob("*.pack"):
        pack.unlink()
    assert store.repair().lost
    answers = crew.ask("commit", 2, place=store.url, step=0, seed=1)
    assert [answer["error"] for answer in answers] == ["StepExists", "RankFailed"]
    assert crew.do("commit", 2, step=0, **about) == [made.id] * 2
    assert store.verify().problems == ()


def test_ranks_commit_to_servers(crew, s3, postgres):
    options = {"catalog": postgres, "storage_options": s3.options}
    with ckptstore.open(s3.url, **options, chunk_bytes=4096) as store:
        crew.do("commit", 2, place=s3.url, step=1, layout="rows", seed=1, **options)
        crew.do("commit", 2, place=s3.url, step=2, layout="columns", seed=1, **options)
        assert store.find(2).new_bytes < store.find(1).new_bytes / 10
        for layout, count in [("columns", 2), ("rows", 3), ("grid", 4), ("plain", 1)]:
            assert crew.do("check_out", count, place=s3.url, step=2, layout=layout, seed=1, **options) == [[]] * count
        assert crew.do("load", 4, place=s3.url, step=1, layout="columns", seed=1, **options) == [[]] * 4
        assert_same(store.checkout(2)["model"], 1)
        assert store.verify().problems == ()


def test_ranks_have_values_of_their_own(crew, store):
    found = crew.do("commit_own", 4, place=store.url, step=1)
    assert found == [[3, 10 * rank, [1, rank]] for rank in range(4)]
    state = store.checkout(1)
    assert list(state) == ["common", "loader", "stages", 0, 1, 2, 3]
    assert state["loader"] == {"epoch": 3}
    assert sorted(state["stages"]) == [f"stage {rank}" for rank in range(4)]
    assert state[2]["queue"] == [1, 2]
    assert store.read(1, "3/loader/position") == 30
    assert state["common"]["weight"].equal(own_state(0, 1)["common"]["weight"])
    assert store.verify().problems == ()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("tuples", {"d": {(0, 1): TWOS, "y": 1}, 0: {"d": {"x": 0}}, 1: {"d": {"x": 1}}}),
        ("enums", {"d": {Colour.BLUE: TWOS, "y": 1}, 0: {"d": {"x": 0}}, 1: {"d": {"x": 1}}}),
        ("dtypes", {"d": {torch.bfloat16: TWOS, "y": 1}, 0: {"d": {"x": 0}}, 1: {"d": {"x": 1}}}),
        ("equal ones", {0: {"d": {"x": 0, 1: TWOS, "y": 1}}, 1: {"d": {"x": 1, True: TWOS, "y": 1}}}),
    ],
)
def test_keys_of_any_kind(crew, store, keys, wanted, background):
    assert crew.do("commit_keys", 2, place=store.url, keys=keys, background=background) == [repr(wanted)] * 2
    assert store.verify().problems == ()


def test_of_equal_keys_of_several_ranks_none_is_lost(crew, store):
    answers = crew.ask("commit_keys", 2, place=store.url, keys="equal ones of other classes", background=False)
    assert [answer["error"] for answer in answers] == ["StateMismatch"] * 2  # each lacks the other's
    with pytest.raises(
        ckptstore.StateError, match=r"'d' has keys that are equal .* 1, <Level.LOW: 1>: choose by paths="
    ):
        store.checkout(1)
    parts = [store.checkout(1, paths=path)["d"] for path in ("d/1", "d/%*")]
    assert repr(parts) == repr([{1: TWOS}, {Level.LOW: TWOS}])


def test_what_ranks_have_of_their_own_needs_as_many_ranks(crew, store, tmp_path):
    crew.do("commit_own", 4, place=store.url, step=1)
    assert crew.do("check_out_own", 4, place=store.url, step=1) == [0, 10, 20, 30]
    answers = crew.ask("check_out_own", 2, place=store.url, step=1)
    assert [answer["error"] for answer in answers] == ["StateMismatch"] * 2
    assert "loader/position: each of 4 ranks had its own, and there are 2 now" in answers[0]["traceback"]
    with pytest.raises(ckptstore.InvalidArgument, match="ranks had 0/loader/position and others each for itself"):
        export_safetensors(store, 1, tmp_path / "loader.safetensors", name="loader")
    assert crew.do("check_out_own", 2, place=store.url, step=1, strict=False) == [0, 10]


def test_who_did_not_take_part_gets_no_part_of_what_is_loaded_whole(crew, store):
    crew.do("commit_partly_own", 2, place=store.url)
    *known, new = crew.do("check_out_partly_own", 3, place=store.url)
    for rank, found in enumerate(known):
        mine = {"epoch": 3, "mine": rank}
        assert found == [[1.0] * 3, rank, [3, 100 + rank], [0, 100 + rank], [float(rank), 0.0, 1.0, 0.0], mine, False]
    assert new == [[1.0] * 3, -1, [0, -1], [0, -1], [-1.0, 0.0, 1.0, 0.0], {"epoch": 3, "mine": -1}, True]


@pytest.mark.parametrize("ranks", [2, 3])
def test_fresh_optimizers_have_dtensors_where_others_had(crew, store, ranks):
    wanted = crew.do("step_after", 2, place=store.url, fresh=False)
    assert wanted[0][2] == ["row_var", "col_var", "exp_avg", "exp_avg_sq"]
    for weight, scale, sharded in crew.do("step_after", ranks, place=store.url, fresh=True):
        assert torch.tensor(weight).allclose(torch.tensor(wanted[0][0]))
        assert (scale, sharded) == (pytest.approx(wanted[0][1]), wanted[0][2])


@pytest.mark.parametrize("ranks", [2, 4])
def test_fresh_optimizers_have_plain_tensors_where_others_had(crew, store, ranks):
    for old, fresh in crew.do("step_after_in_parts", ranks, place=store.url):
        assert (old, old[1]) == (fresh, "Tensor")


def test_who_did_not_take_part_may_choose_what_others_have(crew, store):
    crew.do("commit_partly_own", 2, place=store.url)
    *known, new = crew.do("check_out_partly_own_by_paths", 3, place=store.url)
    assert [found[0] for found in known] == [[3, 100], [3, 101]]
    assert new == [[0, -1], [0, -1], "none"]


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_reading_into_a_dtensor(crew, store, layout):
    crew.do("commit", 2, place=store.url, step=1)
    assert crew.do("read_part", 3, place=store.url, layout=layout) == [[]] * 3


def test_reading_into_a_dtensor_that_does_not_fit(crew, store):
    crew.do("commit", 2, place=store.url, step=1)
    errors, other = crew.do("refuse_to_read", 2, place=store.url)
    assert errors == other
    assert errors["shape"].startswith("InvalidArgument: `out` does not fit: model/weight: ")
    assert errors["dtype"].endswith(": checkout(into=…, paths=…, allow_cast=True) casts it")
    assert errors["rows"].endswith("a DTensor takes its part of the whole: leave out `index`")
    assert errors["sum"].startswith("UnsupportedLeaf: cannot store or fill 'model/weight': a DTensor that is Partial")


def test_one_of_several_replicas_commits(crew, store):
    assert crew.do("commit_of_one_replica", 4, place=store.url) == [[], [], [1, 2], [1, 2, 3, 4]]
    for step in (1, 2, 3, 4):
        assert_same(store.checkout(step)["model"], 4)
    assert store.verify().problems == ()


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("drifted", "'model/2.weight': ranks 1 and 3 have other elements of one part"),
        ("divided", "'model/0.weight': ranks 0 and 2 are on meshes that divide it in other ways"),
    ],
)
def test_no_copies_on_meshes_of_other_ranks(crew, store, way, problem):
    answers = crew.ask("commit_copies_on_meshes", 4, place=store.url, way=way)
    assert [answer["error"] for answer in answers] == ["StateError", *["RankFailed"] * 3]
    for answer in answers:
        assert f"{problem}: copies that drifted apart, or are divided in other ways" in answer["traceback"]
    assert store.steps() == []
    assert_nothing_leaked(store.url)


@pytest.mark.parametrize("drifted", range(4))
def test_no_rank_of_a_mesh_has_a_copy_that_drifted(crew, store, drifted):
    answers = crew.ask("commit_replicated", 4, place=store.url, drifted=drifted)
    assert [answer["error"] for answer in answers] == ["StateError", *["RankFailed"] * 3]
    assert f"ranks 0 and {drifted or 1} have other elements of one part" in answers[0]["traceback"]


def test_all_ranks_write_as_much_of_what_all_have(crew, store):
    assert crew.do("commit_replicated", 4, place=store.url) == [16000] * 4
    assert store.read(1, "w15").tolist() == list(range(15, 1015))
    assert store.verify().problems == ()


def test_ranks_with_nothing_of_a_tensor_divide_it_as_the_others_do(crew, store):
    crew.do("commit_one_row", 4, place=store.url)
    assert store.read(1, "row").tolist() == [list(range(3000))]


def test_copies_are_written_by_ranks_that_have_them(crew, store):
    crew.do("commit_on_meshes_that_overlap", 4, place=store.url)
    assert all(store.read(1, name).equal(torch.arange(3000.0)) for name in "abcdefgh")


@pytest.mark.parametrize("way", ["all", "in the background", "one mesh", "dcp"])
def test_copies_on_meshes_of_other_ranks(crew, store, way):
    assert crew.do("commit_copies_on_meshes", 4, place=store.url, way=way) == [[]] * 4
    assert store.checkout(1)["model"]["2.weight"].shape == (40, 64)
    assert store.verify().problems == ()


def test_ranks_import_each_for_itself(crew, store, tmp_path):
    file = tmp_path / "file.pt"
    torch.save({"model": {"w": torch.ones(3000)}}, file)
    (made,), none = crew.do("import_alone", 2, place=store.url, file=str(file), ranks=[0])
    assert (made, none) == (store.find(1).id, [])
    assert crew.do("import_alone", 2, place=store.url, file=str(file), ranks=[0, 1]) == [[made], [made]]


def test_what_ddp_broadcasts_is_the_first_ranks(crew, store):
    (first, other), (second, same) = crew.do("train_with_statistics", 2, place=store.url)
    assert first != second
    assert other == same == first
    assert store.read(1, "model/module.1.running_mean").tolist() == first


def test_what_ddp_broadcasts_to_some_is_theirs(crew, store):
    found = crew.do("commit_of_several_parallel_models", 4, place=store.url)
    assert found == [[1.0] * 4, [1.0] * 4, [2.0] * 4, [2.0] * 4]


@pytest.mark.parametrize("why", ["ignored", "not broadcast"])
def test_what_ddp_does_not_broadcast_is_each_ranks_own(crew, store, why):
    assert crew.do("commit_statistics_that_stay", 2, place=store.url, why=why) == [[1.0] * 4, [2.0] * 4]


def test_no_rank_gets_what_it_lacked(crew, store):
    for (optimizer, seen), (fresh, other) in crew.do("commit_what_some_lack", 2, place=store.url):
        assert (fresh, other) == (optimizer, seen)
    assert store.verify().problems == ()


def test_a_training_goes_on_with_another_count_of_ranks(crew, store, tmp_path):
    other = str(tmp_path / "other")
    wanted = crew.do("train_together", 1, place=other, start=0, stop=6)[0]
    first = crew.do("train_together", 4, place=store.url, start=0, stop=2)
    second = crew.do("train_together", 2, place=store.url, start=2, stop=4)
    third = crew.do("train_together", 3, place=store.url, start=4, stop=6)
    assert first[0] + second[0] + third[0] == pytest.approx(wanted, rel=1e-5)
    with ckptstore.open(other) as alone:
        assert sorted(store.manifest(6)) == sorted(alone.manifest(6))
    assert store.checkout(6)["model"]["0.weight"].shape == (67, 40)


@pytest.mark.parametrize("kind", ["shapes", "partial", "own", "unknown", "beside"])
def test_states_that_are_none_together(crew, place, kind):
    answers = crew.ask("commit_misfits", 2, place=place, kind=kind)
    errors = [answer["error"] for answer in answers]
    assert errors[0] != errors[1] or errors == ["UnsupportedLeaf"] * 2
    assert set(errors) <= {"StateError", "UnsupportedLeaf", "RankFailed"}
    assert all("'state/w" in answer["traceback"] and AGAIN not in answer["traceback"] for answer in answers)
    with ckptstore.open(place) as store:
        assert store.steps() == []
    assert_nothing_leaked(place)


@pytest.mark.parametrize("ways", [["commit", "commit_async"], ["commit_async", "commit"]])
def test_ranks_that_do_not_call_the_same(crew, store, ways):
    answers = crew.ask("commit_one_way_or_the_other", 2, place=store.url, ways=ways)
    assert [answer["error"] for answer in answers] == ["InvalidArgument", "RankFailed"]
    assert all(
        "as commit and commit_async are: let all ranks call the same" in answer["traceback"] for answer in answers
    )
    assert store.steps() == []
    crew.do("commit", 2, place=store.url, step=1)
    assert store.steps() == [1]


def test_ranks_that_disagree(crew, place, tmp_path):
    apart = crew.ask("commit_apart", 4, places=[place], steps=[1, 1, 2, 1])
    assert [answer["error"] for answer in apart] == ["InvalidArgument", *["RankFailed"] * 3]
    assert all("rank 0 saves to step 1, rank 2 to 2" in answer["traceback"] for answer in apart)
    with ckptstore.open(tmp_path / "other"):
        pass
    apart = crew.ask("commit_apart", 2, places=[place, str(tmp_path / "other")], steps=[1])
    assert [answer["error"] for answer in apart] == ["InvalidArgument", "RankFailed"]
    apart = crew.ask("commit_apart", 2, places=[place], steps=[1, -1])
    assert [answer["error"] for answer in apart] == ["RankFailed", "InvalidArgument"]
    assert AGAIN not in apart[0]["traceback"]
    with ckptstore.open(place) as store:
        assert store.steps() == []


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_fails(crew, store, who):
    crew.do("commit", 2, place=store.url, step=1)
    answers = crew.ask("commit_and_fail", 2, place=store.url, step=2, who=who, how="fail")
    assert [answer["error"] for answer in answers] == ["OSError" if rank == who else "RankFailed" for rank in range(2)]
    assert f"rank {who} failed: OSError: the state is gone{AGAIN}" in answers[1 - who]["traceback"]
    crew.do("commit", 2, place=store.url, step=2, seed=2)
    assert store.steps() == [1, 2]


def test_a_rank_whose_state_cannot_be_had(crew, store):
    """As with optimizers that are consolidated on one rank alone."""
    answers = crew.ask("commit_and_fail", 2, place=store.url, step=1, who=1, how="refuse")
    assert [answer["error"] for answer in answers] == ["RankFailed", "RuntimeError"]
    assert "rank 1 failed: RuntimeError: the state is gone" in answers[0]["traceback"]
    assert AGAIN not in answers[0]["traceback"]


@pytest.mark.crash
def test_a_rank_that_dies(doomed, store):
    crew = doomed(2)
    answers = crew.ask("commit_and_fail", 2, place=store.url, step=1, who=1, how="die")
    assert answers[0]["error"] == "RankFailed" and "gone" in answers[0]["traceback"]
    assert answers[1] is None
    assert store.steps() == []
