from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch

import ckptstore

LONG = "a name that is long enough to be broken in a table of eighty columns, and then some"


def test_ls_lists_leaves(url, output, asked):
    text = output("ls", url, "latest")
    assert "(0.9, 0.999)" in text and "tied to model/emb.weight" in text and "\\n" in text
    leaves = {leaf["path"]: leaf for leaf in asked("ls", url, 200)}
    assert leaves["model/emb.weight"]["shape"] == [50, 60] and leaves["model/emb.weight"]["bytes"] == 12000
    assert leaves["model/head.weight"]["tied_to"] == "model/emb.weight"
    assert (leaves["optim/betas"]["kind"], leaves["optim/betas"]["value"]) == ("value", "(0.9, 0.999)")
    assert leaves["optim/numpy"]["library"] == "numpy"
    assert leaves[f"{LONG}/é\n"]["value"] == "200"


def test_ls_of_globs(url, asked, output):
    assert [leaf["path"] for leaf in asked("ls", url, 0, "*/*.weight", "optim/lr")] == [
        "model/emb.weight",
        "model/head.weight",
        "optim/lr",
    ]
    assert len(output("ls", url, 0, "model").splitlines()) == 5


def test_diff(url, output, asked):
    text = output("diff", url, 0, "best")
    assert "C  model/emb.weight" in text and "0.001 → " in text and "12.0 kB" in text
    assert "0 added, 0 removed, 0 moved, 5 changed, 3 unchanged" in text
    document = asked("diff", url, 0, 100)
    kinds = {change["path"]: change["kind"] for change in document["changes"]}
    assert kinds["optim/lr"] == "changed" and "model/frozen" not in kinds
    assert (document["old"], document["new"], document["changed"]) == ("main@0", "main@100", 5)


def test_what_else_of_a_tensor_changed(tmp_path, output, asked):
    for size in (3, 300):
        one, url = torch.rand(size, 4), tmp_path / str(size)
        with ckptstore.open(url) as store:
            store.commit({"g": one, "p": one + 1, "o": one + 2}, step=0)
            other = {"g": one.clone().requires_grad_(), "p": torch.nn.Parameter(one + 1, requires_grad=False)}
            store.commit(other | {"o": (one + 2).t().contiguous().t()}, step=1)
        text = output("diff", url, 0, 1)
        for how in ("requires_grad", "parameter", "order=[1, 0]"):
            assert f"float32 [{size}, 4] → float32 [{size}, 4] {how}" in text
        assert text.splitlines()[-1].startswith("0 B of ")
        changes = asked("diff", url, 0, 1)["changes"]
        notes = {change["path"]: (change["old"]["notes"], change["new"]["notes"]) for change in changes}
        assert notes == {"g": ([], ["requires_grad"]), "p": ([], ["parameter"]), "o": ([], ["order=[1, 0]"])}


def test_diff_of_runs_marks_what_was_added(url, output):
    assert "A  new" in output("diff", url, 200, "side@210")
    assert "R  new" in output("diff", url, "side@210", 200)


def test_diff_summary(url, output, asked):
    assert len(output("diff", url, 0, 100, "--summary").splitlines()) == 2
    assert "changes" not in asked("diff", url, 0, 100, "--summary")


def test_diff_of_equal_states_is_empty(url, output):
    assert output("diff", url, 0, 0).startswith("0 added, 0 removed, 0 moved, 0 changed, 8 unchanged\n")


def test_diff_of_structure(tmp_path, output, asked):
    one, other, url = torch.ones(30), torch.ones(30), tmp_path / "store"
    with ckptstore.open(url) as store:
        state = {"l": [0 * one], "t": one, "d": deque([1], 2), "k": {"a": 1, "b": 2}, "v": other, "w": one}
        store.commit({"x": state}, step=0)
        state = {"l": (0 * one,), "t": one, "d": deque([1], 3), "k": {"b": 2, "a": 1}, "v": one, "w": other, "e": {}}
        state = {"x": state}
        store.commit(state, step=1)
    rows = [line.split(maxsplit=2) for line in output("diff", url, 0, 1).splitlines()]
    assert ["S", "x/l", "list → tuple"] in rows
    assert ["S", "x/d", "deque maxlen=2 → deque maxlen=3"] in rows
    assert ["S", "x/k", "dict, its keys in another order"] in rows
    assert ["S", "x/e", "no container → dict"] in rows
    assert ["T", "x/v", "apart → tied to x/t"] in rows
    assert ["T", "x/w", "tied to x/t → apart"] in rows
    assert ["T", "x/t", "tied to x/w → tied to x/v"] in rows
    summary = output("diff", url, 0, 1, "--summary").splitlines()
    assert summary[1] == "4 containers built and 3 leaves tied otherwise"
    document = asked("diff", url, 0, 1)
    assert (document["changes"], document["restructured"], document["retied"]) == ([], 4, 3)
    containers = {each["path"]: (each["old"], each["new"]) for each in document["containers"]}
    assert [one["keys"] for one in containers["x/k"]] == [["'a'", "'b'"], ["'b'", "'a'"]]
    assert [one["attributes"] for one in containers["x/d"]] == [{"maxlen": "2"}, {"maxlen": "3"}]
    assert containers["x/e"] == (None, {"kind": "dict", "type": None, "keys": [], "attributes": {}})
    assert {each["path"]: (each["old"], each["new"]) for each in document["ties"]} == {
        "x/t": (["x/t", "x/w"], ["x/t", "x/v"]),
        "x/v": ([], ["x/t", "x/v"]),
        "x/w": (["x/t", "x/w"], []),
    }


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_only_what_differs_is_shown_of_a_container(tmp_path, output):
    with ckptstore.open(tmp_path / "store") as store:
        for step, zero in enumerate((0, 7)):
            noted: Any = OrderedDict(a=1)
            noted.note = f"{'as before ' * 20}{step}"
            store.commit(
                {"q": torch.quantize_per_tensor(torch.ones(9), 1 / 255, zero, torch.quint8), "x": noted}, step=step
            )
    rows = "".join(output("diff", tmp_path / "store", 0, 1).split())
    assert "quantized_per_tensorzero_point=0→quantized_per_tensorzero_point=7" in rows
    assert "SxOrderedDictvars=" in rows and "…,andanotherfurtheron" in rows


def test_the_whole_state_is_named_in_a_diff(tmp_path, output):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"a": 1, "b": 2}, step=0)
        store.commit({"b": 2, "a": 1}, step=1)
    assert "S  (the state)" in output("diff", tmp_path / "store", 0, 1)


def test_diff_values(url, output, asked):
    pytest.importorskip("ckptstore.operations.numbers")
    changes = {change["path"]: change for change in asked("diff", url, 0, 100, "--values")["changes"]}
    assert changes["model/emb.weight"]["numbers"]["max_abs"] == 100.0
    assert changes["optim/lr"]["numbers"] is None
    text = output("diff", url, 0, 100, "--values")
    assert "MAX ABS" in text and "1.00e+02" in text
