"""Statements that were compiled already, for all catalogs of a process: SQLAlchemy's engines share none."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect

_MOST = 1000
"""Some times as many as there are."""


class Statements(dict[Any, Any]):
    """For the execution option `compiled_cache`. What one dialect made is good for every other one of its class that
    speaks with the same version of a database.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        """See `dict.get`."""
        return super().get(_shared(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        if len(self) >= _MOST:
            self.clear()
        super().__setitem__(_shared(key), value)


def _shared(key: Any) -> Any:
    """A statement's key begins with the dialect, which is another one for each engine."""
    first, *rest = key
    return (type(first), first.server_version_info, *rest) if isinstance(first, Dialect) else key


COMPILED = Statements()
SHARING = {"compiled_cache": COMPILED}
"""The execution option of all engines."""
