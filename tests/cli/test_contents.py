from __future__ import annotations

import pytest

LONG = "a name that is long enough to be broken in a table of eighty columns, and then some"


def test_ls_lists_leaves(url, told, asked):
    text = told("ls", url, "latest")
    assert "(0.9, 0.999)" in text and "tied to model/emb.weight" in text and "\\n" in text
    leaves = {leaf["path"]: leaf for leaf in asked("ls", url, 200)}
    assert leaves["model/emb.weight"]["shape"] == [50, 60] and leaves["model/emb.weight"]["bytes"] == 12000
    assert leaves["model/head.weight"]["tied_to"] == "model/emb.weight"
    assert (leaves["optim/betas"]["kind"], leaves["optim/betas"]["value"]) == ("value", "(0.9, 0.999)")
    assert leaves["optim/numpy"]["library"] == "numpy"
    assert leaves[f"{LONG}/é\n"]["value"] == "200"


def test_ls_of_globs(url, asked, told):
    assert [leaf["path"] for leaf in asked("ls", url, 0, "*/*.weight", "optim/lr")] == [
        "model/emb.weight",
        "model/head.weight",
        "optim/lr",
    ]
    assert len(told("ls", url, 0, "model").splitlines()) == 5


def test_diff(url, told, asked):
    text = told("diff", url, 0, "best")
    assert "C  model/emb.weight" in text and "0.001 → " in text and "12.0 kB" in text
    assert "0 added, 0 removed, 0 moved, 5 changed, 3 unchanged" in text
    document = asked("diff", url, 0, 100)
    kinds = {change["path"]: change["kind"] for change in document["changes"]}
    assert kinds["optim/lr"] == "changed" and "model/frozen" not in kinds
    assert (document["old"], document["new"], document["changed"]) == ("main@0", "main@100", 5)


def test_diff_of_runs_marks_what_was_added(url, told):
    assert "A  new" in told("diff", url, 200, "side@210")
    assert "R  new" in told("diff", url, "side@210", 200)


def test_diff_summary(url, told, asked):
    assert len(told("diff", url, 0, 100, "--summary").splitlines()) == 2
    assert "changes" not in asked("diff", url, 0, 100, "--summary")


def test_diff_of_equal_states_is_empty(url, told):
    assert told("diff", url, 0, 0).startswith("0 added, 0 removed, 0 moved, 0 changed, 8 unchanged\n")


def test_diff_values(url, told, asked):
    pytest.importorskip("ckptstore.operations.numbers")
    changes = {change["path"]: change for change in asked("diff", url, 0, 100, "--values")["changes"]}
    assert changes["model/emb.weight"]["numbers"]["max_abs"] == 100.0
    assert changes["optim/lr"]["numbers"] is None
    text = told("diff", url, 0, 100, "--values")
    assert "MAX ABS" in text and "1.00e+02" in text
