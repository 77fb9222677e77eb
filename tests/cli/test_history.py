from __future__ import annotations

import datetime as dt

import pytest

import ckptstore


def test_log_lists_commits_newest_first(url, output, asked):
    head, *rows = output("log", url).splitlines()
    assert head.split() == ["STEP", "TAGS", "AGE", "LEAVES", "LOGICAL", "NEW", "METADATA"]
    assert [row.split()[0] for row in rows] == ["200", "100", "0"]
    assert "best" in rows[1] and "loss=1.9 note=text" in rows[1] and rows[1].endswith("…")
    commits = asked("log", url)
    assert [(commit["step"], commit["parent"]) for commit in commits] == [(200, "main@100"), (100, "main@0"), (0, None)]
    assert commits[1]["tags"] == ["best"] and commits[1]["metadata"]["loss"] == 1.9


def test_log_of_some_of_another_run(url, asked):
    assert [commit["step"] for commit in asked("log", url, "-n", 2)] == [200, 100]
    assert [commit["parent"] for commit in asked("log", url, "--run", "side")] == ["main@200"]


def test_piped_output_is_not_broken(url, run):
    rows = run("ls", url, 100, columns=None).stdout.splitlines()
    assert len(rows) == 1 + len(ckptstore.open(url).manifest(100))
    assert run("log", url, columns=None).stdout.count("text " * 29) == 3


def test_times_are_iso(url, asked):
    created = dt.datetime.fromisoformat(asked("log", url)[0]["created"])
    assert abs(created - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)


def test_nothing_committed_is_no_error(tmp_path, run, asked):
    ckptstore.open(tmp_path / "empty").close()
    for command in ("log", "steps", "tag"):
        assert run(command, tmp_path / "empty").stdout == ""
    assert asked("log", tmp_path / "empty") == asked("steps", tmp_path / "empty") == []


def test_show(url, output, asked):
    text = output("show", url, "best")
    assert "main@100" in text and "main@0" in text and "loss" in text and "bfloat16" in text
    commit = asked("show", url, "main@100")
    assert (commit["step"], commit["parent"], commit["leaves"]) == (100, "main@0", 8)
    assert commit["dtypes"]["bfloat16"] == {"leaves": 1, "bytes": 2400}
    assert asked("show", url, "side@latest")["parent"] == "main@200"


def test_steps(url, output, asked):
    assert output("steps", url) == "0\n100\n200\n"
    assert asked("steps", url, "--run", "side") == [210]


def test_tag(url, output, asked):
    assert output("tag", url, "good", "latest") == "tag good is now main@200\n"
    assert asked("tag", url) == {"run": "main", "tags": {"best": 100, "good": 200}}
    assert [row.split() for row in output("tag", url).splitlines()] == [
        ["TAG", "STEP"],
        ["best", "100"],
        ["good", "200"],
    ]
    output("tag", url, "-d", "best")
    assert ckptstore.open(url).tags() == {"good": 200}


@pytest.mark.parametrize("arguments", [("name",), ("-d",), ("-d", "name", "100")])
def test_tag_says_what_it_takes(url, run, arguments):
    assert "NAME and STEP" in run("tag", url, *arguments, code=2).stderr


def test_rm_and_restore(url, output, asked):
    assert output("rm", url, "0", "main@0", "side@210").startswith("deleted main@0\ndeleted side@210\n")
    assert "(deleted)" in output("log", url, "--deleted") and asked("steps", url) == [100, 200]
    deleted = [commit["deleted"] is not None for commit in asked("log", url, "--deleted")]
    assert deleted == [False, False, True]
    assert output("restore", url, 0) == "restored main@0\n"
    assert asked("restore", url, 210, "--run", "side")["step"] == 210
    output("rm", url, "side@210")
    assert output("restore", url, "side@210", "--run", "main") == "restored side@210\n"
    assert asked("steps", url) == [0, 100, 200]


@pytest.mark.parametrize("step", ["best", "side@latest", "side@", "@210", "1" * 5000])
def test_restore_takes_numbers_of_steps(url, run, step):
    assert "give the step's number" in run("restore", url, step, code=2).stderr


def test_rm_is_all_or_nothing(url, run, asked):
    assert "tag" in run("rm", url, "0", "best", code=1).stderr
    assert "no step 7" in run("rm", url, "0", "7", code=1).stderr
    assert asked("steps", url) == [0, 100, 200]


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [(lambda other: other.tag("kept", 200), "remove or move the tag"), (lambda other: other.delete(200), "deleted")],
    ids=["tagged", "deleted"],
)
def test_rm_leaves_all_when_one_changes_meanwhile(url, run, asked, monkeypatch, meanwhile, error):
    original, left = ckptstore.Store.find, ["200"]

    def find(self, step):
        found = original(self, step)
        if step in left:
            left.remove(step)
            with ckptstore.open(url) as other:
                meanwhile(other)
        return found

    monkeypatch.setattr(ckptstore.Store, "find", find)
    assert error in run("rm", url, "0", "200", "side@210", code=1).stderr
    assert not left
    assert 0 in asked("steps", url) and asked("steps", url, "--run", "side") == [210]


def test_rm_tells_until_when(url, asked):
    document = asked("rm", url, 200)
    assert [(commit["run"], commit["step"]) for commit in document["deleted"]] == [("main", 200)]
    assert dt.datetime.fromisoformat(document["restorable_until"]) > dt.datetime.now(dt.UTC) + dt.timedelta(minutes=14)


def test_show_takes_the_latest(url, asked):
    assert asked("show", url) == asked("show", url, 200)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A store of which no run is called as the default is."""
    monkeypatch.chdir(tmp_path)
    with ckptstore.open("runs") as store:
        for step in (1, 2):
            for run in ("base", "other"):
                store.commit({"x": step, "run": run}, step=step, run=run)
    return "runs"


def test_a_step_of_a_run_of_its_own_needs_no_other(runs, output, run, asked):
    assert "base@2" in output("show", runs, "base@2")
    assert "x" in output("ls", runs, "base@2")
    assert "1 changed" in output("diff", runs, "base@1", "base@2", "--summary")
    assert "wrote base@1 to" in output("export", runs, "base@1", "file.pt")
    assert "deleted base@1" in output("rm", runs, "base@1")
    for arguments in (("diff", runs, "base@2", "2"), ("show", runs), ("tag", runs, "x", "2")):
        stderr = run(*arguments, code=1).stderr
        assert "no run 'main': choose one with --run; there are base, other" in stderr
    assert "nearest: other" in run("show", runs, "2", "--run", "othr", code=1).stderr


def test_the_only_run_is_meant(tmp_path, monkeypatch, output, run, asked):
    monkeypatch.chdir(tmp_path)
    with ckptstore.open("one") as store:
        for step in (1, 2, 3):
            store.commit({"x": step}, step=step, run="base")
    assert asked("steps", "one") == [1, 2, 3]
    assert output("read", "one", 2, "x") == "2\n"
    assert output("tag", "one", "best", 2) == "tag best is now base@2\n"
    assert asked("gc", "one", "--keep-last", 1)["delete"] == [1]
    assert "deleted base@1" in output("rm", "one", 1)
    assert "nearest: base" in run("show", "one", "--run", "main", code=1).stderr
    with ckptstore.open("one") as store:
        store.commit({"x": 4}, step=4, run="main")
    assert asked("steps", "one") == [4]


def test_a_tag_of_another_run_is_reported_as_one_of_that(runs, output, asked):
    assert output("tag", runs, "best", "base@2") == "tag best is now base@2\n"
    assert output("tag", runs, "best", "other@1", "--run", "base") == "tag best is now other@1\n"
    assert asked("tag", runs, "best", "other@2") == {"run": "other", "tags": {"best": 2}}
    assert asked("tag", runs, "--run", "base") == {"run": "base", "tags": {"best": 2}}
    assert output("tag", runs, "-d", "best", "--run", "base") == "removed tag best\n"
