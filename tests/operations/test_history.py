import pytest
import torch

import ckptstore
from ckptstore import InvalidArgument, RunNotFound, StepNotFound, TagNotFound


@pytest.fixture
def store(tmp_path):
    with ckptstore.open(tmp_path / "store") as opened:
        for step in (10, 20, 30):
            opened.commit({"x": step}, step=step, metadata={"loss": 1 / step})
        yield opened


def test_a_commit_stands_on_the_step_below(store):
    assert [commit.parent_ref for commit in store.log()] == ["main@20", "main@10", None]
    between = store.commit({"x": 25}, step=25)
    assert between.parent == store.find(20).id
    assert store.commit({"x": 0}, step=0).parent is None


def test_a_parent_can_be_named(store):
    assert store.commit({"x": 40}, step=40, parent=10).parent_ref == "main@10"
    assert store.commit({"x": 50}, step=50, parent=store.find(20)).parent_ref == "main@20"
    with pytest.raises(InvalidArgument, match=r"parent 40 of step 35.*a lower step"):
        store.commit({"x": 35}, step=35, parent=40)
    with pytest.raises(StepNotFound, match="no step 11"):
        store.commit({"x": 60}, step=60, parent=11)
    assert store.steps() == [10, 20, 30, 40, 50]


def test_a_run_forks(store, tmp_path):
    fork = store.commit({"x": 1}, step=3, run="fork", parent="latest")
    assert (fork.run, fork.parent_ref) == ("fork", "main@30")
    assert store.commit({"x": 2}, step=4, run="fork").parent_ref == "fork@3"
    assert [(run.name, run.commits, run.latest, run.forked_from) for run in store.runs()] == [
        ("fork", 2, 4, "main@30"),
        ("main", 3, 30, None),
    ]
    with ckptstore.open(tmp_path / "store", run="fork") as other:
        assert other.steps() == [3, 4]
        assert other.checkout("main@10") == {"x": 10}
        assert other.log()[0].step == other.latest() == 4


def test_a_purged_parent_is_forgotten(store):
    store.delete(20)
    assert store.find(30).parent_ref == "main@20"
    store.gc(grace=0)
    assert store.find(30).parent is store.find(30).parent_ref is None
    assert store.verify().ok


@pytest.mark.parametrize("ref", [20, "20", "main@20", "best", "main@best"])
def test_a_commit_has_many_names(store, ref):
    store.tag("best", 20)
    assert store.find(ref).step == 20
    assert store.find(store.find(ref)) == store.find(20)
    assert store.find("latest") == store.find("main@latest") == store.find(30)


def test_numbers_of_other_libraries_are_steps(store):
    assert store.find(torch.tensor(20)).step == 20
    assert store.commit({"x": 1}, step=torch.tensor(40)).step == 40


@pytest.mark.parametrize(
    ("ref", "error", "message"),
    [
        (21, StepNotFound, "no step 21; nearest: 20"),
        ("besst", TagNotFound, "no tag 'besst'; nearest: best"),
        ("mian@20", RunNotFound, "no run 'mian'; nearest: main"),
        (-1, InvalidArgument, "-1"),
        (1.5, InvalidArgument, "float"),
        (True, InvalidArgument, "bool"),
        (None, InvalidArgument, "NoneType"),
    ],
)
def test_unknown_names_are_reported_with_near_ones(store, ref, error, message):
    store.tag("best", 20)
    with pytest.raises(error, match=message):
        store.find(ref)


def test_a_tag_of_another_run_is_reported(store):
    store.tag("best", 20)
    store.commit({"x": 1}, step=1, run="other")
    with pytest.raises(TagNotFound, match=r"run 'other' has no tag 'best'; .*main@best is one"):
        store.find("other@best")


@pytest.mark.parametrize("name", ["", " x", "a@b", "12", "latest", "a\nb", "x" * 201, 5])
def test_names_that_cannot_be(store, name):
    with pytest.raises(InvalidArgument):
        store.tag(name, 10)
    with pytest.raises(InvalidArgument):
        store.commit({"x": 1}, step=99, run=name)
    assert store.tags() == {}
    assert len(store.runs()) == 1


def test_tags_move_and_protect(store):
    store.tag("best", 10)
    store.tag("best", 20)
    assert store.tags() == {"best": 20}
    assert store.find(20).tags == ("best",)
    with pytest.raises(ckptstore.StepProtected, match="best"):
        store.delete(20)
    store.untag("best")
    store.delete(20)
    assert store.steps() == [10, 30]


def test_deleted_steps_come_back(store):
    store.delete("latest")
    assert store.latest() == 20
    assert [commit.step for commit in store.log(deleted=True)] == [30, 20, 10]
    assert store.restore(30).step == 30
    assert store.checkout(30) == {"x": 30}


def test_an_empty_run(tmp_path):
    with ckptstore.open(tmp_path / "store", run="new") as store:
        assert (store.steps(), store.latest(), store.log(), store.runs(), store.tags()) == ([], None, [], [], {})
        with pytest.raises(RunNotFound, match="no run 'new'; there is none yet"):
            store.checkout()


@pytest.mark.parametrize("metadata", [{"x": object()}, {1: 2}, [1], {"x": {1, 2}}])
def test_metadata_that_is_not_json(store, metadata):
    with pytest.raises(InvalidArgument, match="metadata"):
        store.commit({"x": 1}, step=40, metadata=metadata)
    assert store.latest() == 30


def test_metadata_holds_numbers_of_tensors(store):
    assert store.commit({"x": 1}, step=40, metadata={"loss": torch.tensor(0.5)}).metadata == {"loss": 0.5}
