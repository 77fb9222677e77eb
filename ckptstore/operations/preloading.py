"""Imports that take long, so that a signal's handler may interrupt them and need the same modules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from threading import Thread

_STAGING = "operations.ranks.wishes", "operations.ranks.ranks", "state.staging"
_COMMITTING = *_STAGING, "operations.commit", "operations.ranks.together"


def import_staging() -> None:
    """Import what the caller of a background commit needs, and wait; the commit's thread imports the rest."""
    _import_apart(_STAGING)


def import_committing() -> None:
    """Import what commits need, and wait."""
    _import_apart(_COMMITTING)


@cache
def _import_apart(names: Sequence[str]) -> None:
    """Import them in another thread, and wait: a handler that interrupts this one finds nothing half done.

    What goes wrong there is raised by who imports it next.
    """
    thread = Thread(target=_import, args=(names,), name="ckptstore-import", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return  # the interpreter exits, which commits tell
    thread.join()


def _import(names: Sequence[str]) -> None:
    try:
        for name in names:
            import_module(f"ckptstore.{name}")
    except Exception:  # noqa: BLE001 - whatever it is, it will be met again
        return
