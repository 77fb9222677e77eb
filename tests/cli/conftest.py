from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import ckptstore
from ckptstore.cli import cli

Run = Callable[..., Result]
WIDTH = 80


def state(step: int) -> dict[str, Any]:
    weight = torch.arange(3000, dtype=torch.float32).view(50, 60) + step
    frozen = torch.ones(40, 30, dtype=torch.bfloat16)
    return {
        "model": {"emb.weight": weight, "head.weight": weight, "frozen": frozen, "layers": [torch.tensor(step)]},
        "optim": {"lr": 1e-3 / (step + 1), "betas": (0.9, 0.999), "numpy": np.arange(4)},
        "a name that is long enough to be broken in a table of eighty columns, and then some": {"é\n": step},
    }


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "ckpts"
    with ckptstore.open(folder) as store:
        for step in (0, 100, 200):
            store.commit(state(step), step=step, metadata={"loss": 2.0 - step / 1000, "note": "text " * 30})
        store.tag("best", 100)
        store.commit(state(200) | {"new": torch.zeros(3)}, step=210, run="side", parent="main@200")
    return folder


@pytest.fixture
def url(made_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of one's own, by a relative path."""
    shutil.copytree(made_store, tmp_path / "ckpts")
    monkeypatch.chdir(tmp_path)
    return "ckpts"


@pytest.fixture
def run() -> Run:
    """Runs a command that should end with an exit code, 0 if none is given."""

    def run(*arguments: object, code: int = 0, columns: int | None = WIDTH) -> Result:
        environment = {"COLUMNS": None if columns is None else str(columns)}
        result = CliRunner().invoke(cli, [str(part) for part in arguments], env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def output(run: Run) -> Callable[..., str]:
    """What a command prints for people, which fits into 80 columns."""

    def output(*arguments: object, code: int = 0) -> str:
        text = run(*arguments, code=code).stdout
        assert max(map(len, text.splitlines()), default=0) <= WIDTH
        return text

    return output


@pytest.fixture
def asked(run: Run) -> Callable[..., Any]:
    """The JSON document that a command answers with."""
    return lambda *arguments, code=0: json.loads(run(*arguments, "--json", code=code).stdout)
