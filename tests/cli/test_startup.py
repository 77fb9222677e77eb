from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PRELUDE = """
import sys
from click.testing import CliRunner
from ckptstore.cli import cli

def run(*arguments):
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
"""


def loaded_by(commands: str) -> set[str]:
    """The modules that these commands import, run in a process of their own."""
    program = PRELUDE + textwrap.dedent(commands) + '\nprint(*sys.modules, sep="\\n")'
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_torch_is_not_imported_to_look_at_a_store(url):
    loaded = loaded_by(
        f"""
        run("init", "new")
        for json in ((), ("--json",)):
            run("log", "{url}", *json)
            run("show", "{url}", "latest", *json)
            run("steps", "{url}", *json)
            run("runs", "{url}", *json)
            run("ls", "{url}", "0", "**", *json)
            run("read", "{url}", "0", "optim/lr", *json)
            run("diff", "{url}", "0", "100", *json)
            run("tag", "{url}", *json)
            run("verify", "{url}", *json)
            run("stats", "{url}", *json)
            run("gc", "{url}", "--keep-last", "2", *json)
        run("tag", "{url}", "good", "0")
        run("rm", "{url}", "200")
        run("restore", "{url}", "200")
        run("gc", "{url}", "--yes")
        """
    )
    assert "ckptstore.operations.collecting.gc" in loaded
    assert not loaded & {"torch", "numpy", "safetensors", "alembic", "fsspec", "rich.console", "rich.progress"}


def test_push_needs_no_torch(url):
    loaded = loaded_by(f'run("init", "new", "--digest", "sha256")\nrun("push", "{url}", "new")')
    assert "ckptstore.operations.push" in loaded and "torch" not in loaded


def test_migrate_needs_no_torch(url):
    loaded = loaded_by(f'run("migrate", "{url}")')
    assert "alembic" in loaded and "torch" not in loaded


def test_safetensors_need_no_dcp(url, tmp_path):
    file = tmp_path / "file.safetensors"
    loaded = loaded_by(
        f"""
        run("export", "{url}", "0", "{file}", "--paths", "model/*.weight")
        run("import", "{url}", "{file}", "--step", "1000")
        """
    )
    assert "safetensors" in loaded and "torch.distributed.checkpoint" not in loaded


def test_help_and_completion_do_not_import_the_store():
    loaded = loaded_by('run("--help")\nrun("gc", "--help")\nrun("completion", "zsh")')
    allowed = {"ckptstore", "ckptstore.errors"}
    ours = {name for name in loaded if name.startswith("ckptstore") and not name.startswith("ckptstore.cli")}
    assert ours == allowed and "sqlalchemy" not in loaded


def test_a_warning_is_one_line(url):
    next(Path(url).glob("manifests/main/000000000100.*")).write_bytes(b"damaged")
    for path in Path(url).glob("catalog.sqlite*"):
        path.unlink()
    command = [sys.executable, "-m", "ckptstore", "steps", url, "--read-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "200"]
    commit, tag = done.stderr.splitlines()
    assert commit.startswith("warning: manifests/main/000000000100.")
    assert tag.startswith("warning: tags/") and tag.endswith("is of a commit that is not there")
