"""A catalog that fails."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, cast

from ckptstore.catalog.base import Catalog
from ckptstore.errors import CatalogError


class FailNthCall:
    """A catalog of which one call fails, once; see `failing_catalog`."""

    def __init__(self, catalog: Catalog, n: int, *, after: bool) -> None:
        self._catalog, self._n, self._after = catalog, n, after
        self._lock = threading.Lock()
        self.seen = 0

    @property
    def failed(self) -> bool:
        """Whether the failure has come."""
        return self.seen >= self._n

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        return partial(self._call, name, found) if callable(found) and name != "close" else found

    def _call(self, name: str, method: Any, *args: Any, **options: Any) -> Any:
        with self._lock:
            self.seen += 1
            is_nth = self.seen == self._n
        if not is_nth:
            return method(*args, **options)
        if self._after:
            method(*args, **options)
        raise CatalogError(f"injected: {name} failed, call {self._n}")


def failing_catalog(catalog: Catalog, n: int, *, after: bool = False) -> tuple[Catalog, FailNthCall]:
    """A catalog of which the nth call (the first being 1) raises CatalogError, and the counter of calls.

    Args:
        catalog: the catalog under test.
        n: which call fails; `close` does not count.
        after: fail only after the call took effect, as when an answer is lost on its way.
    """
    failing = FailNthCall(catalog, n, after=after)
    return cast("Catalog", failing), failing
