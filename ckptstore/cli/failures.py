"""Errors as one message and an exit code."""

from __future__ import annotations

import errno
from typing import IO, Any

import click

from ckptstore.cli.text import clean
from ckptstore.errors import CkptStoreError

FAILED = 1
INTERRUPTED = 130


class Failure(click.ClickException):
    """Ends a command with `error: …` on stderr."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        message = "\n".join(map(clean, self.message.split("\n")))  # it may quote what a store holds
        click.echo(f"{click.style('error:', fg='red')} {message}", file=file, err=True, color=self.show_color)


class Interrupted(Failure):
    """Ctrl-C."""

    exit_code = INTERRUPTED


class GuardedGroup(click.Group):
    """A group whose commands' errors become failures. What is no user's mistake keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CkptStoreError as error:
            raise Failure(str(error)) from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            raise Failure(_message(error)) from error


def _message(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
