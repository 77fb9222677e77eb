"""A store that grows by real commits of many small leaves, with the time that its catalog takes."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from benchmarks.tools import Tensors
from ckptstore.catalog.base import Catalog, CommitRecord
from ckptstore.format.version import MIB
from ckptstore.opening import open_parts
from ckptstore.store import DEFAULT_RUN, Store

CHANGED = 20
"""One in so many leaves changes from one commit to the next."""


class Growing:
    """A store with its objects in memory. Its leaves change in turn, so that a commit relies on `CHANGED` packs."""

    def __init__(self, catalog: str, leaves: int) -> None:
        parts = open_parts(
            f"memory://{uuid.uuid4().hex}",
            catalog=catalog,
            create=True,
            read_only=False,
            digest="xxh3_128",
            chunk_bytes=4 * MIB,
            storage_options=None,
        )
        self.timed = Timed(parts.catalog)
        self.catalog = cast(Catalog, self.timed)
        self.store = Store(replace(parts, catalog=self.catalog), DEFAULT_RUN)
        self.tensors: Tensors = {f"layers.{number}.weight": torch.randn(32) for number in range(leaves)}
        self._names = list(self.tensors)
        self._step, self._oldest = 0, 1

    def grow(self, count: int) -> None:
        """Commit until there are so many."""
        while self._step < count:
            self.change()
            self.commit()

    def change(self) -> None:
        """One step of training."""
        for name in self._names[self._step % CHANGED :: CHANGED]:
            self.tensors[name].add_(0.01)

    def commit(self) -> CommitRecord:
        """The next step."""
        self._step += 1
        return self.store.commit({"model": self.tensors}, step=self._step, metadata={"loss": 1 / self._step})

    def any_step(self) -> int:
        """One of the newer half of all."""
        return random.randint(self._step // 2 + 1, self._step)

    def path(self) -> str:
        """The path of some leaf."""
        return f"model/{random.choice(self._names)}"

    def collect_oldest(self) -> None:
        """Drop one commit, and take out of the catalog what only that one needed."""
        oldest = self.catalog.find(DEFAULT_RUN, self._oldest)
        self._oldest += 1
        self.catalog.delete([oldest])
        self.catalog.settle(self.catalog.condemn(grace=0))


class Timed:
    """A catalog that remembers how long its methods take."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seconds: dict[str, float] = {}

    def taken(self) -> dict[str, float]:
        """Method → seconds since this was called last."""
        found, self._seconds = self._seconds, {}
        return found

    def __getattr__(self, method: str) -> Any:
        return partial(self._call, method)

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return getattr(self._catalog, method)(*arguments, **named)
        finally:
            self._seconds[method] = self._seconds.get(method, 0.0) + time.perf_counter() - start
