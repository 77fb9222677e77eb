"""The command line: `ckptstore VERB STORE …`.

Modules of the store are imported by the commands when they run, so that help and shell completion never wait for them.
"""

from __future__ import annotations

import io
import os
import sys
import warnings

import click

from ckptstore import __version__
from ckptstore.cli.collect import gc
from ckptstore.cli.completion import PROGRAM, completion
from ckptstore.cli.contents import diff, ls
from ckptstore.cli.doctor import doctor
from ckptstore.cli.failures import GuardedGroup
from ckptstore.cli.files import export_, import_
from ckptstore.cli.history import log, restore, rm, runs, show, steps, tag
from ckptstore.cli.mending import repair
from ckptstore.cli.pushing import push
from ckptstore.cli.reading import read
from ckptstore.cli.upkeep import init, migrate, rebuild, rekey, stats, verify

__all__ = ["cli", "main"]

_EPILOG = (
    "Exit codes: 0 done; 1 an error, verify found damage, repair left some, or doctor found what does not hold; "
    "2 wrong usage; 130 interrupted."
)


@click.group(cls=GuardedGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Git for training state.

    Every command but completion takes a STORE: a folder, or a URL that fsspec knows, such as s3://bucket/name.
    """


for _command in (
    *(init, log, show, steps, runs, ls, read, diff, tag, rm, restore, gc, verify, repair, stats),
    *(push, export_, import_, migrate, rebuild, rekey, doctor, completion),
):
    cli.add_command(_command)


def _warning(message: Warning | str, *_: object, **__: object) -> str:
    """Without the place in the code, which says nothing to who typed a command."""
    return f"warning: {message}\n"


def main() -> None:
    """The entry point. What the output's encoding has no character for is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _warning
    cli(prog_name=PROGRAM, color=False if os.environ.get("NO_COLOR") else None)
