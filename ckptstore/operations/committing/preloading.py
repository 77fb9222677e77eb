"""Imports that take long, so that a signal's handler may interrupt them and need the same modules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from threading import Thread

_STAGING = "operations.ranks.wishes", "operations.ranks.gloo", "state.staging"
_COMMITTING = *_STAGING, "operations.committing.commit", "operations.ranks.together", "operations.ranks.as_one"
_MOST_SECONDS = 10
"""How long a fork waits for imports, which may themselves wait for the thread that forks."""
_UNDER_WAY: set[Thread] = set()


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
    _UNDER_WAY.add(thread)
    try:
        thread.start()
        thread.join()
    except RuntimeError:
        return  # the interpreter exits, which commits report
    finally:
        if not thread.is_alive():
            _UNDER_WAY.discard(thread)


def _import(names: Sequence[str]) -> None:
    try:
        for name in names:
            import_module(f"ckptstore.{name}")
    except Exception:  # noqa: BLE001 - whatever it is, it will be met again
        return


def _wait_before_a_fork() -> None:
    """Whoever is forked off would wait for ever for a module that a thread was importing then."""
    for thread in list(_UNDER_WAY):
        if thread.is_alive():
            thread.join(_MOST_SECONDS)


os.register_at_fork(before=_wait_before_a_fork)
