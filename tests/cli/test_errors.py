from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

import ckptstore
from ckptstore.cli import cli

TERMINAL = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
MISTAKES = [
    (("log", "nowhere"), "check the place"),
    (("log", "abc://x"), "abc"),
    (("log", "memory://nothing"), "ckptstore.json"),
    (("log", "ckpts", "--catalog", "no url"), "sqlite:///"),
    (("log", "ckpts", "--catalog", "sqlite:///missing/catalog.sqlite"), "missing"),
    (("log", "ckpts", "--run", "mian"), "nearest: main"),
    (("steps", "ckpts", "--run", "a@b"), '"@"'),
    (("steps", "ckpts", "--run", ""), "run ''"),
    (("gc", "ckpts", "--run", "", "--keep-last", "1", "--most", "1", "--yes"), "run ''"),
    (("import", "ckpts", "file.pt", "--step", "1", "--run", ""), "run ''"),
    (("show", "ckpts", "101"), "nearest: 100"),
    (("show", "ckpts", "bets"), "nearest: best"),
    (("show", "ckpts", "other@1"), "other"),
    (("ls", "ckpts", "0", "modle/*"), "nearest: model"),
    (("read", "ckpts", "0", "model/emb.wieght"), "nearest: model/emb.weight"),
    (("read", "ckpts", "7", "model"), "no step 7"),
    (("diff", "ckpts", "0", "7"), "no step 7"),
    (("tag", "ckpts", "latest", "0"), "latest"),
    (("tag", "ckpts", "-d", "bets"), "nearest: best"),
    (("rm", "ckpts", "best"), "remove or move the tag"),
    (("restore", "ckpts", "3"), "no deleted step 3"),
    (("gc", "ckpts", "--keep-last", "-1"), "0 or more"),
    (("gc", "ckpts", "--grace", "-1"), "0 or more"),
    (("gc", "ckpts", "--keep-best", f"loss:{'9' * 5000}"), "in its metadata"),
    (("gc", "ckpts", "--keep-best", "loss:mx"), "nearest: loss; give METRIC[:max][:N]"),
    (("show", "ckpts", "\udcff"), "UTF-8"),
    (("log", "ckpts", "--catalog", "sqlite:///a\0b"), "NUL"),
    (("init", "ckpts"), "already"),
    (("import", "ckpts", "file.pt", "--step", "1"), "file.pt"),
    (("import", "ckpts", "file.pt", "--step", "-1"), "file.pt"),
    (("export", "ckpts", "0", "all.safetensors"), "optim/lr: a plain value"),
    (("export", "ckpts", "0", "file.pt"), "--force"),
    (("export", "ckpts", "0", "missing/file.pt"), "missing/file.pt: No such"),
]


@pytest.mark.parametrize(
    ("arguments", "advice"), MISTAKES, ids=lambda it: "-".join(it) if isinstance(it, tuple) else ""
)
def test_a_mistake_is_reported_on_stderr(url, run, arguments, advice):
    Path("file.pt").write_text("no pickle")
    for options in ((), ("--json",)):
        result = run(*arguments, *options, code=1)
        assert result.stdout == "" and result.stderr.startswith("error: ") and advice in result.stderr
    assert ckptstore.open(url).steps() == [0, 100, 200]


@pytest.mark.parametrize(
    "arguments",
    [("log",), ("nothing",), ("ls", "ckpts"), ("rm", "ckpts"), ("restore", "ckpts", "x"), ("log", "-n", "0")],
)
def test_wrong_usage(url, run, arguments):
    assert "Usage: " in run(*arguments, code=2).stderr


def test_an_interrupt(url, run, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ckptstore.store.Store.verify", interrupt)
    assert run("verify", url, code=130).stderr == "error: interrupted\n"


def test_a_missing_package(url, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = run("log", url, "--catalog", "postgresql+psycopg://nobody@localhost/none", code=1)
    assert "psycopg" in result.stderr


def test_a_reader_that_went_away(url):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ckptstore", "ls", url, "0"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_module_runs(url):
    command = [sys.executable, "-m", "ckptstore", "log", url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"})
    assert [commit["step"] for commit in json.loads(done.stdout)] == [200, 100, 0]
    missing = subprocess.run([*command[:3], "show", url, "5"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1 and missing.stderr.startswith("error: run 'main' has no step 5")


@pytest.mark.parametrize("name", ["init", "runs", "verify", "repair", "stats", "migrate", "rebuild", "rekey", "doctor"])
def test_what_is_about_the_whole_store_takes_no_run(url, name, run):
    more = ["new-passphrase"] if name == "rekey" else []
    assert "No such option '--run'" in run(name, url, *more, "--run", "side", code=2).stderr


@pytest.mark.parametrize("name", sorted(set(cli.commands) - {"completion"}))
def test_a_store_is_called_as_on_the_page(name, run):
    assert "Missing argument 'STORE'" in run(name, code=2).stderr


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_explains_itself(name, run):
    command = cli.commands[name]
    assert any("--json" in parameter.opts for parameter in command.params)
    help_text = run(name, "--help").stdout
    assert help_text.startswith("Usage: ") and max(map(len, help_text.splitlines())) <= 80
    undocumented = [it.name for it in command.params if isinstance(it, click.Option) and not it.help]
    assert not undocumented and command.help


def test_the_list_of_commands_is_not_cut(run):
    command = [sys.executable, "-m", "ckptstore", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    assert "..." not in done.stdout.partition("\n")[2] and "Exit codes" in done.stdout
    assert ckptstore.__version__ in run("--version").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, run, asked):
    script = run("completion", shell).stdout
    assert "_CKPTSTORE_COMPLETE" in script
    assert asked("completion", shell) == {"shell": shell, "script": script.removesuffix("\n")}


@pytest.mark.parametrize(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_of_those_who_want_them(url, environment, coloured):
    for arguments in (("log", url), ("show", url, "5")):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "ckptstore", *arguments]
        subprocess.run(command, stdout=theirs, stderr=theirs, env=TERMINAL | environment, check=False)
        os.close(theirs)
        assert (b"\x1b[" in os.read(ours, 1 << 16)) == coloured
        os.close(ours)


@pytest.mark.parametrize(
    ("name", "options", "answer"),
    [("verify", [], "no problem"), ("gc", ["--grace", "0", "--yes"], "freed 1 pack")],
)
def test_a_bar_on_a_terminal_shows_progress(url, name, options, answer):
    with ckptstore.open(url) as store:
        store.commit({"w": torch.rand(5000)}, step=300)
        store.delete(300)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ckptstore", name, url, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True, env=TERMINAL)
    os.close(theirs)
    assert name.encode() in os.read(ours, 1 << 16) and answer in done.stdout
    os.close(ours)


def test_a_lost_catalog_can_be_rebuilt(url, run):
    catalog = Path(url) / "catalog.sqlite"
    catalog.unlink()
    for command in ("log", "verify", "gc", "migrate"):
        assert "make it anew with ckptstore rebuild" in run(command, url, code=1).stderr
    assert not catalog.exists()
    run("rebuild", url)
    assert ckptstore.open(url).steps() == [0, 100, 200]


READING = [
    ("log",),
    ("show", "200"),
    ("steps",),
    ("runs",),
    ("ls", "100"),
    ("read", "100", "model"),
    ("diff", "0", "100"),
    ("stats",),
    ("verify",),
]


def test_a_folder_without_its_catalog_is_read_when_told(url, run):
    def answers(*options):
        outputs = [run(name, url, *rest, "--json", *options).stdout for name, *rest in READING]
        return [re.sub('"created": "[^"]*"', "", answer) for answer in outputs]  # by other clocks

    run("tag", url, "-d", "best")  # tags are not in storage
    catalog = Path(url) / "catalog.sqlite"
    before = answers()
    catalog.unlink()
    assert answers("--read-only") == before
    run("export", url, "200", "model.safetensors", "--paths", "model/frozen", "--read-only")
    assert Path("model.safetensors").exists() and not catalog.exists()
    assert "--read-only" in run("rm", url, "0", "--read-only", code=2).stderr
    for command in ("log", "verify"):
        assert "read_only=True" in run(command, url, code=1).stderr


def test_an_interrupt_while_imports_take_their_time(tmp_path):
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "ckptstore", "log", "store"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize("damage", [b"no database", None])
def test_what_helps_a_damaged_catalog_is_reported(url, run, damage):
    catalog = Path(url) / "catalog.sqlite"
    whole = catalog.read_bytes()
    catalog.write_bytes(whole[: len(whole) // 2] if damage is None else damage * 1000)
    assert "rebuild" in run("verify", url, code=1).stderr


def test_what_deleted_steps_may_be_restored_for(url, run):
    assert "restorable for ever" in run("gc", url, "--keep-last", 1, "--grace", "inf", "--yes").stdout
    assert ckptstore.open(url).steps() == [100, 200]


def test_a_step_that_was_not_deleted_is_not_restored(url, run):
    assert "it is there" in run("restore", url, 100, code=1).stderr


def test_what_the_output_cannot_show_is_escaped(url):
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "ckptstore", "diff", url, "0", "100"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert b"\\u2192" in done.stdout


def test_an_error_shows_nothing_unescaped(tmp_path, run):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"model": {"\x1b]0;w\x07": 1, "\x1b[31mx": 2}}, step=0)
    for arguments in (("ls", tmp_path / "store", 0, "model/0;w"), ("export", tmp_path / "store", 0, "all.safetensors")):
        stderr = run(*arguments, code=1).stderr
        assert r"model/\x1b]0;w\x07" in stderr and stderr.isascii() and stderr.replace("\n", "").isprintable()


def test_without_an_output_nothing_breaks(url):
    command = f'"{sys.executable}" -m ckptstore log {url} >&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
