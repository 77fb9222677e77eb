from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import safetensors.torch
import torch

from ckptstore.cli import cli

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
EXAMPLES = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)]


def test_every_command_has_a_section_with_an_example():
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(cli.commands)
    assert all(f"$ ckptstore {name} " in text for name, text in sections.items())


def test_the_examples_run(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20))
    safetensors.torch.save_file(model.state_dict(), "pretrained.safetensors")
    folder = tmp_path / "hub" / "pretrained"
    folder.mkdir(parents=True)
    for number, (name, value) in enumerate(model.state_dict().items(), 1):
        safetensors.torch.save_file({name: value}, folder / f"model-0000{number}-of-00002.safetensors")
    places = '{"0.weight": "model-00001-of-00002.safetensors", "0.bias": "model-00002-of-00002.safetensors"}'
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {places}}}')
    torch.save({name: value + 1 for name, value in model.state_dict().items()}, "tuned.pt")
    for name in ("passphrase", "new-passphrase"):
        (tmp_path / name).write_text(name)
    for program, *arguments in EXAMPLES:
        if program == "mv":
            source, target = arguments
            shutil.move(source, target)
        else:
            run(*arguments)
