from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckptstore


def test_init_makes_a_store_with_settings(tmp_path, run, asked):
    place = tmp_path / "new"
    assert asked("init", place, "--digest", "sha256", "--chunk-bytes", 65536) == {"url": str(place)}
    assert '"sha256"' in (place / "ckptstore.json").read_text()
    assert "already" in run("init", place, code=1).stderr


def test_init_refuses_what_cannot_be(tmp_path, run):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    assert "a place of its own" in run("init", tmp_path / "other", code=1).stderr
    stderr = run("init", tmp_path / "new", "--digest", "md5", code=2).stderr
    assert "'md5' is not one of 'xxh3_128', 'sha256', 'blake3'" in " ".join(stderr.split())
    assert "--chunk-bytes" in run("init", tmp_path / "new", "--chunk-bytes", 1, code=2).stderr
    assert "CKPTSTORE_KEY_FILE" in run("init", tmp_path / "new", "--encrypt", code=1).stderr
    assert not (tmp_path / "new").exists()


def test_init_goes_on_where_it_failed_at_the_catalog(tmp_path, run, asked):
    place, catalog = tmp_path / "new", f"sqlite:///{tmp_path}/folder/catalog.sqlite"
    (tmp_path / "folder").touch()
    assert "folder" in run("init", place, "--catalog", catalog, code=1).stderr
    (tmp_path / "folder").unlink()
    assert "ckptstore init makes one" in run("log", place, "--catalog", catalog, code=1).stderr
    assert asked("init", place, "--catalog", catalog) == {"url": str(place)}
    assert "already" in run("init", place, "--catalog", catalog, code=1).stderr


def test_init_makes_no_catalog_beside_commits(tmp_path, url, run):
    (tmp_path / "empty.sqlite").touch()
    stderr = run("init", url, "--catalog", f"sqlite:///{tmp_path}/empty.sqlite", code=1).stderr
    assert "holds commits: " in stderr and "ckptstore rebuild" in stderr


def test_stats(url, output, asked):
    assert "main" in output("stats", url) and "stored" in output("stats", url)
    document = asked("stats", url)
    assert document["commits"] == 4 and document["stored_bytes"] > 0
    runs = {run["name"]: run for run in document["runs"]}
    assert runs["main"]["latest"] == 200 and runs["side"]["forked_from"] == "main@200"


def test_runs(url, output, asked, run, tmp_path):
    assert [line.split() for line in output("runs", url).splitlines()[1:]] == [
        ["main", "3", "200"],
        ["side", "1", "210", "main@200"],
    ]
    assert asked("runs", url) == asked("stats", url)["runs"]
    ckptstore.open(tmp_path / "empty").close()
    assert run("runs", tmp_path / "empty").stderr == "the store has no run\n"
    assert asked("runs", tmp_path / "empty") == []


def test_verify(url, output, asked):
    assert output("verify", url).startswith("no problem in 4 commits")
    assert asked("verify", url)["ok"]


def test_verify_finds_damage(url, output, asked):
    pack = max(Path(url).glob("packs/*/*.pack"), key=lambda path: path.stat().st_size)
    pack.chmod(0o644)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    text = output("verify", url, code=1)
    assert "OBJECT" in text and "1 problem" in text and text.endswith("\nckptstore repair tells what can be mended\n")
    document = asked("verify", url, code=1)
    assert not document["ok"] and document["problems"][0]["object"].startswith("packs/")
    assert document["problems"][0]["affected"]


def test_migrate(url, output, asked):
    assert "already" in output("migrate", url)
    assert (
        asked("migrate", url)["before"]
        == asked("migrate", url, "--catalog", f"sqlite:///{url}/catalog.sqlite")["after"]
    )


def test_migrate_makes_no_catalog_where_no_store_is(tmp_path, run):
    assert "ckptstore.json" in run("migrate", tmp_path, code=1).stderr
    assert not list(tmp_path.iterdir())


def test_gc_only_shows_the_plan(url, output, asked):
    before = sorted(path.name for path in Path(url).rglob("*.*"))
    text = output("gc", url, "--keep-last", 1, "--grace", 0)
    rows = {row.split()[0]: row for row in text.splitlines()[1:4]}
    assert "delete" in rows["0"] and "tagged best" in rows["100"] and "one of the last 1" in rows["200"]
    assert "--yes" in text
    plan = asked("gc", url, "--keep-last", 1)
    assert plan["delete"] == [0] and plan["report"] is None
    assert plan["keep"] == [{"step": 200, "why": "one of the last 1"}, {"step": 100, "why": "tagged best"}]
    assert asked("steps", url) == [0, 100, 200]
    assert sorted(path.name for path in Path(url).rglob("*.*")) == before


def test_gc_does_it_when_told(url, output, asked):
    output("tag", url, "-d", "best")
    assert "deleted 2 commits, freed 0 packs" in output("gc", url, "--keep-last", 1, "--yes")
    assert asked("steps", url) == [200]
    report = asked("gc", url, "--grace", 0, "--yes")["report"]
    assert (report["deleted"], report["manifests"], report["packs"]) == ([], 2, 1) and report["bytes"] > 1000
    assert asked("verify", url)["ok"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--keep-every", 200), [200, 100, 0]),
        (("--keep-every-seconds", 3600), [100, 0]),
        (("--keep-every-seconds", 1e-9), [200, 100, 0]),
        (("--keep-best", "loss"), [200, 100]),
        (("--keep-best", "loss:max"), [100, 0]),
        (("--keep-best", "loss:max:2"), [100, 0]),
        (("--keep-best", "loss:3"), [200, 100, 0]),
        (("--keep-last", 0), [100]),
        (("--keep-last", 1, "--keep-best", "loss:max"), [200, 100, 0]),
    ],
)
def test_gc_policies(url, asked, options, kept):
    assert [commit["step"] for commit in asked("gc", url, *options)["keep"]] == kept


def test_gc_refuses_a_misspelt_metric(url, run):
    assert "nearest: loss" in run("gc", url, "--keep-best", "los", "--yes", code=1).stderr
    assert ckptstore.open(url).steps() == [0, 100, 200]


def test_gc_refuses_to_delete_nearly_all_unseen(tmp_path, run, asked):
    with ckptstore.open(tmp_path / "store") as store:
        for step in range(20):
            store.commit({"step": step}, step=step)
    gc = ("gc", tmp_path / "store", "--keep-last", 1)
    assert len(asked(*gc)["delete"]) == 19
    result = run(*gc, "--yes", code=1)
    assert "19 of 20 commits of run 'main'" in result.stderr and "raise most= (--most)" in result.stderr
    assert result.stdout == "" and len(asked("steps", tmp_path / "store")) == 20
    assert "most=nan" in run(*gc, "--yes", "--most", "nan", code=1).stderr
    for most in (-0.1, 1.1, "all"):
        assert "--most" in run(*gc, "--most", most, code=2).stderr
    assert "1 of 20 commits" in run(*gc[:2], "--keep-last", 19, "--yes", "--most", 0, code=1).stderr
    assert len(asked(*gc, "--yes", "--most", 0.95)["report"]["deleted"]) == 19


def test_the_defaults_that_help_tells(run):
    from ckptstore.operations.collecting.terms import DEFAULT_GRACE, DEFAULT_MOST

    text = " ".join(run("gc", "--help").stdout.split())
    assert f"[default: {DEFAULT_GRACE:.0f}]" in text and f"[default: {DEFAULT_MOST}]" in text


def test_what_is_about_all_runs_needs_none(tmp_path, output):
    with ckptstore.open(tmp_path / "store", run="exp-7") as store:
        store.commit({"a": 1}, step=0)
    assert "exp-7" in output("stats", tmp_path / "store")
    assert "exp-7" in output("runs", tmp_path / "store")
    assert output("verify", tmp_path / "store").startswith("no problem in 1 commit")
    assert "to free: 0 packs" in output("gc", tmp_path / "store")


def test_verify_looks_as_deep_as_it_is_told(url, output, asked, run):
    assert "0 packs" in output("verify", url, "--level", "catalog")
    assert asked("verify", url)["packs"] == sum(
        asked("verify", url, "--subset", f"{part}/3")["packs"] for part in (1, 2, 3)
    )
    assert asked("verify", url, "--older-than", 3600)["packs"] == 0
    for wrong in ("3", "a/b", "1/", "0/3", "4/3"):
        assert "give K/N" in run("verify", url, "--subset", wrong, code=2).stderr
    assert "--level" in run("verify", url, "--level", "deep", code=2).stderr


def test_the_choices_are_those_of_the_store():
    from typing import get_args

    from ckptstore import store
    from ckptstore.cli import place
    from ckptstore.cli.upkeep import CHUNK_BYTES, DIGESTS, LEVELS
    from ckptstore.format import digests, version
    from ckptstore.operations.verifying.verify import Level

    assert get_args(Level) == LEVELS
    assert place.DEFAULT_RUN == store.DEFAULT_RUN
    assert set(DIGESTS) == set(digests._MAKERS) and version.CHUNK_BYTES == CHUNK_BYTES


def test_repair(url, output, asked, tmp_path):
    shutil.copytree(url, tmp_path / "backup")
    assert "0 damaged packs" in output("repair", url)
    for path in Path(url).glob("packs/*/*.pack"):
        path.unlink()
    assert "STAYS DAMAGED" in output("repair", url)
    plan = asked("repair", url)
    assert plan["report"] is None and plan["lost"] and plan["packs"]
    assert asked("repair", url, "--source", "backup")["lost"] == []
    report = asked("repair", url, "--source", "backup", "--source-catalog", "sqlite:///backup/catalog.sqlite", "--yes")
    assert report["report"]["lost"] == [] and report["report"]["chunks"] == plan["chunks"] + report["chunks"]
    assert "retired 0 packs" in output("repair", url, "--yes")
    assert asked("verify", url)["ok"]


@pytest.mark.parametrize("way", ["file", "source", "push", "commit"])
def test_repair_tells_what_brings_back_what_is_lost(url, output, asked, run, tmp_path, way):
    backup = shutil.copytree(url, tmp_path / "backup")
    for path in Path(url).glob("packs/*/*.pack"):
        path.unlink()
    for options, code in (((), 0), (("--yes",), 1)):
        text = output("repair", url, *options, code=code)
        assert all(word in text for word in ("copy of the store", "--source", "push", "same content", "verify"))
    assert asked("verify", url, code=1)["problems"] and asked("repair", url, "--yes", code=1)["report"]["lost"]
    if way == "file":
        shutil.copytree(backup / "packs", Path(url) / "packs", dirs_exist_ok=True)
    with ckptstore.open(backup) as there, ckptstore.open(url) as here:
        for step in there.steps() if way == "commit" else []:
            here.commit(there.checkout(step), step=step)
        here.commit({"new": there.read("side@210", "new")}, step=1000)
    if way == "push":
        run("push", backup, url)
    text = output("repair", url, "--yes", *(("--source", backup) if way == "source" else ()))
    assert "same content" not in text and asked("verify", url)["ok"]


def test_repair_from_a_copy_without_its_catalog(url, asked):
    shutil.copytree(url, "backup")
    Path("backup", "catalog.sqlite").unlink()
    for path in Path(url).glob("packs/*/*.pack"):
        path.unlink()
    assert asked("repair", url, "--source", "backup", "--yes")["report"]["lost"] == []
    assert asked("verify", url)["ok"]
    assert not Path("backup", "catalog.sqlite").exists()


def test_an_encrypted_store(tmp_path, run, asked, output, monkeypatch):
    for name in ("CKPTSTORE_KEY", "CKPTSTORE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    old, new, place = tmp_path / "old", tmp_path / "new", tmp_path / "store"
    old.write_text("old")
    new.write_text("new")
    stderr_of_init = run("init", place, "--encrypt", code=1).stderr
    assert stderr_of_init.startswith("error: a store is encrypted with a passphrase: give key_file")
    assert not place.exists()
    asked("init", place, "--encrypt", "--key-file", old)
    assert "already" in run("init", place, "--key-file", old, code=1).stderr
    assert "is encrypted: give key_file" in run("stats", place, code=1).stderr
    assert asked("verify", place, "--key-file", old)["ok"]
    assert "does not open" in run("rekey", place, new, "--key-file", new, code=1).stderr
    assert "the new passphrase opens" in output("rekey", place, new, "--key-file", old)
    assert asked("stats", place, "--key-file", new)["commits"] == 0
    assert "does not open" in run("stats", place, "--key-file", old, code=1).stderr


def test_an_encrypted_store_is_mended_from_backups_with_other_keys(url, run, asked, tmp_path, monkeypatch):
    for name in ("CKPTSTORE_KEY", "CKPTSTORE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("key", "another"):
        (tmp_path / name).write_text(name)
    run("init", "sealed", "--encrypt", "--key-file", "key")
    run("push", url, "sealed", "--target-key-file", "key")
    shutil.copytree("sealed", "copy")
    run("rekey", "copy", "another", "--key-file", "key")
    for path in Path("sealed").glob("packs/*/*.pack"):
        path.unlink()
    repair = ("repair", "sealed", "--key-file", "key")
    stderr = run(*repair, "--source", url, code=1).stderr
    assert "only a copy has its key" in stderr and "push the commits back from there" in stderr
    assert "does not open" in run(*repair, "--source", "copy", code=1).stderr
    assert asked(*repair, "--source", "copy", "--source-key-file", "another")["lost"] == []
    assert "not encrypted" in run(*repair, "--source", url, "--source-key-file", "another", code=1).stderr
    run(*repair, "--yes", code=1)
    run("push", url, "sealed", "--target-key-file", "key")
    assert asked("verify", "sealed", "--key-file", "key")["ok"]
