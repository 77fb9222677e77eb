"""Imports that take long, so that a signal's handler may interrupt them and need the same modules."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from threading import Thread

_COMMITTING = ("operations.commit", "operations.ranks.together", "state.staging")


@cache
def import_committing() -> None:
    """Import what commits need in another thread, and wait: a handler that interrupts this one finds nothing half done.

    What goes wrong there is raised by who imports it next.
    """
    thread = Thread(target=_import, name="ckptstore-import", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return  # the interpreter exits, which commits tell
    thread.join()


def _import() -> None:
    try:
        for name in _COMMITTING:
            import_module(f"ckptstore.{name}")
    except Exception:  # noqa: BLE001 - whatever it is, it will be met again
        return
