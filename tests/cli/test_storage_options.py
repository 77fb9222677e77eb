"""Every command reaches a store on a server that needs options, and shows none of them."""

from __future__ import annotations

import json

import pytest
import torch

import ckptstore
from ckptstore.cli import cli

OPTION = "--storage-options"


@pytest.fixture
def place(s3, tmp_path, monkeypatch, run):
    """A store on an S3 server with two commits, as it is given to commands."""
    monkeypatch.chdir(tmp_path)
    place = (s3.url, OPTION, json.dumps(s3.options), "--catalog", "sqlite:///catalog.sqlite")
    run("init", *place)
    for step in (1, 2):
        torch.save({"w": torch.arange(2000.0) + step}, "model.pt")
        run("import", *place, "model.pt", "--step", step)
    return place


def test_every_command_about_a_store_takes_them():
    taking = {
        name for name, command in cli.commands.items() for parameter in command.params if OPTION in parameter.opts
    }
    assert taking == set(cli.commands) - {"completion"}


def test_the_environment_tells_what_is_left_out(place, s3, run, asked, monkeypatch):
    assert run("steps", s3.url, code=1).stdout == ""
    monkeypatch.setenv("CKPTSTORE_STORAGE_OPTIONS", json.dumps(s3.options))
    monkeypatch.setenv("CKPTSTORE_CATALOG", "sqlite:///catalog.sqlite")
    run("tag", s3.url, "best", "1")
    assert asked("tag", s3.url)["tags"] == {"best": 1}
    assert "other.sqlite is not there" in run("tag", s3.url, "--catalog", "sqlite:///other.sqlite", code=1).stderr


def test_a_store_on_a_server_is_used(place, s3, run, asked):
    assert asked("steps", *place) == [1, 2] and asked("verify", *place)["ok"]
    run("tag", *place, "best", "1")
    run("export", *place, "best", "out.safetensors")
    run("rm", *place, "2")
    run("restore", *place, "2")
    assert asked("migrate", *place)["before"] == asked("migrate", *place)["after"]
    assert asked("rebuild", *place[:3], "--catalog", "sqlite:///anew.sqlite")["commits"] == 2
    assert asked("log", *place[:3])[0]["step"] == 2  # without its catalog
    with ckptstore.open(s3.url, catalog="sqlite:///catalog.sqlite", storage_options=s3.options) as store:
        assert store.tags() == {"best": 1}


def test_an_encrypted_store_on_a_server(place, s3, tmp_path, run, asked):
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    sealed = (s3.below("sealed"), *place[1:3], "--catalog", "sqlite:///sealed.sqlite")
    run("init", *sealed, "--encrypt", "--key-file", "old")
    run("rekey", *sealed, "new", "--key-file", "old")
    assert asked("log", *sealed, "--key-file", "new") == []


def test_a_repair_has_options_for_each_of_both_stores(place, s3, asked, tmp_path):
    bucket = ckptstore.open(s3.url, storage_options=s3.options)
    with bucket, ckptstore.open(tmp_path / "folder") as store:
        for step in (1, 2):
            store.commit(bucket.checkout(step), step=step)
    for path in (tmp_path / "folder").rglob("*.pack"):
        path.unlink()
    source = ("--source", s3.url, f"--source{OPTION[1:]}", place[2])
    assert asked("repair", "folder", *source, "--yes")["report"]["lost"] == []
    assert asked("verify", "folder")["ok"]
    assert asked("repair", *place, "--source", "folder")["lost"] == []


def test_the_doctor_goes_where_they_lead(place, s3, run):
    nowhere = s3.url.replace("s3://bucket/", "s3://no-such-bucket/")
    assert "bucket does not exist" in run("doctor", nowhere, *place[1:3], code=1).stderr


@pytest.mark.parametrize(
    "text",
    ["", "hunter2", "[]", "null", '"hunter2"', '{"secret": "hunter2"', "{'secret': 'hunter2'}", '{"a":' * 99999],
    ids=range(8),
)
def test_what_is_no_object_of_json_is_wrong_usage(url, run, text):
    for arguments in (("log", url, OPTION, text), ("repair", url, "--source", url, "--source-storage-options", text)):
        stderr = run(*arguments, code=2).stderr
        assert "Usage: " in stderr and "storage-options" in stderr and "give a JSON object" in stderr
        assert "hunter2" not in stderr and len(stderr) < 1000


def test_a_folder_takes_none(url, run):
    stderr = run("log", url, OPTION, '{"secret": "hunter2"}', code=1).stderr
    assert "is a folder" in stderr and "hunter2" not in stderr


@pytest.mark.parametrize("wrong", [{"secret": "hunter2"}, {"passphrase": "hunter2"}, {"config_kwargs": "hunter2"}])
def test_an_error_tells_no_option(place, s3, run, wrong):
    for command in ("log", "doctor", "migrate", "rebuild"):
        result = run(command, s3.url, OPTION, json.dumps(s3.options | wrong), code=1)
        assert result.stderr.startswith("error: ") and "hunter2" not in result.output
