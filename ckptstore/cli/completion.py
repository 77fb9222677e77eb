"""The command completion: click's own scripts."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ckptstore.cli.output import print_json
from ckptstore.cli.place import json_option

PROGRAM = "ckptstore"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(context: click.Context, *, shell: str, as_json: bool) -> None:
    """Print a script that completes commands and options.

    For bash: eval "$(ckptstore completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc. For fish:
    ckptstore completion fish > ~/.config/fish/completions/ckptstore.fish.
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(context.find_root().command, {}, PROGRAM, "_CKPTSTORE_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
