"""A store that is given as itself or by its URL."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import InvalidArgument, nearest
from ckptstore.opening import attach_parts
from ckptstore.store import DEFAULT_RUN, Store, open_store

_OPTIONS = frozenset(inspect.signature(open_store).parameters) - {"url", "run"}
_FOR_STORAGE = frozenset({"storage_options", "compression", "key_file"})


class Place:
    """Opened when it is first needed, in each process anew.

    Args:
        store: a store, or its URL.
        run: the run; by default the store's own.
        options: for a URL, what `ckptstore.open` takes.

    Raises InvalidArgument for options beside a store, and for those that `ckptstore.open` does not know.
    """

    def __init__(self, store: Store | str | os.PathLike[str], run: str | None, options: Mapping[str, Any]) -> None:
        if isinstance(store, Store) and options:
            raise InvalidArgument(f"{', '.join(options)}: these go to ckptstore.open, which gave this store already")
        for name in options.keys() - _OPTIONS:
            raise InvalidArgument(f"{name}: ckptstore.open takes no such option; {nearest(name, sorted(_OPTIONS))}")
        self._store: Store | str | os.PathLike[str] | None = store
        self._options = dict(options)
        self.run = run or (store.run if isinstance(store, Store) else DEFAULT_RUN)
        self._parts = store._parts if isinstance(store, Store) else None  # noqa: SLF001 - what it is made of
        self._attached: ChunkStore | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        given = isinstance(self._store, Store)
        kept = {"_store": None} if given else {"_parts": None}
        return self.__dict__ | kept | {"_attached": None}

    def parts(self) -> ChunkStore:
        """The store, made if it is missing. Raises what `ckptstore.open` raises."""
        if self._parts is None:
            self._parts = open_store(self._store, run=self.run, **self._options)._parts  # type: ignore[arg-type] # noqa: SLF001 - as above
        return self._parts

    def settle(self) -> None:
        """Return once anybody may change what the store that was given is committing in the background."""
        if isinstance(self._store, Store):
            self._store._background.settle()  # noqa: SLF001 - as above

    def rest(self) -> None:
        """Give back the connections of a store that was opened here, until it is needed again."""
        if self._store is not None and not isinstance(self._store, Store) and self._parts is not None:
            self._parts.close()

    def storage(self) -> ChunkStore:
        """The store for a rank that leaves the catalog to another one. Raises NotAStore, WrongKey."""
        if self._parts is not None:
            return self._parts
        if self._attached is None:
            kept = {name: value for name, value in self._options.items() if name in _FOR_STORAGE}
            self._attached = attach_parts(self._store, **kept)  # type: ignore[arg-type] # a URL
        return self._attached
