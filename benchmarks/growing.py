"""A store that grows by the transactions of real commits, and how long its catalog takes for them.

Its manifests are whole and its digests random; the chunks themselves and the documents are not written, since the
catalog never looks at them.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import ChunkLocation, CommitRecord, NewPack, Objects
from ckptstore.format import document
from ckptstore.format.manifest import Entry, Manifest, TensorEntry
from ckptstore.format.version import MIB
from ckptstore.opening import open_parts
from ckptstore.operations.session import LEASE_SECONDS
from ckptstore.store import DEFAULT_RUN, Store
from ckptstore.testing.catalog_making import new_commit

CHANGED = 20
"""One in so many leaves changes from one commit to the next."""

_SHAPE, _BYTES = (256, 512), 256 * 512 * 4


class Growing:
    """A store whose leaves, of a chunk each, change in turn, so that a commit relies on `CHANGED` packs."""

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
        self._parts = replace(parts, catalog=self.catalog)
        self.store = Store(self._parts, DEFAULT_RUN)
        self._paths = [f"model/layers.{number}.weight" for number in range(leaves)]
        self._digests = {path: os.urandom(16) for path in self._paths}
        self._step = 0

    def grow(self, count: int) -> None:
        """Commit until there are so many."""
        while self._step < count:
            self.commit()

    def commit(self) -> None:
        """Train a step, and make the next commit as a writer does."""
        for path in self._paths[self._step % CHANGED :: CHANGED]:
            self._digests[path] = os.urandom(16)
        self._step += 1
        parent = self.catalog.newest(DEFAULT_RUN, self._step - 1)
        session = self.catalog.open_session(LEASE_SECONDS)
        digests = list(self._digests.values())
        found = self.catalog.pin(session, digests)
        pack = _pack([digest for digest in digests if digest not in found])
        self.catalog.reserve(session, [pack.name])
        new = new_commit(
            self._step,
            [pack],
            sorted({location.pack for location in found.values()}),
            parent=parent.id if parent else None,
            metadata={"loss": 1 / self._step},
        )
        new = replace(new, manifest=self._document(new.id, sorted(new.needs)), leaves=len(digests))
        self.catalog.reserve(session, (), document=new.document)
        self.catalog.commit(session, new)

    def look_up(self, step: int) -> ChunkLocation:
        """Where the chunk of some path of a commit lies."""
        entry = self.store.manifest(step)[random.choice(self._paths)]
        [location] = self.catalog.locate([entry.chunks]).values()
        return location

    def collect(self, gone: Sequence[CommitRecord]) -> None:
        """Drop commits, and take out of the catalog what only they needed."""
        self.catalog.delete(gone)
        while (condemned := self.catalog.condemn(grace=0)) != Objects([], []):
            self.catalog.settle(condemned)

    def whole(self) -> bool:
        """Whether the newest commit is there with every chunk, and the catalog has nothing against itself."""
        held = {path: entry.chunks for path, entry in self.store.manifest().items()}
        located = self.catalog.locate(list(held.values()))
        return held == self._digests and located.keys() == set(held.values()) and not self.catalog.check()

    def _document(self, commit: str, needs: Sequence[str]) -> bytes:
        entries: dict[str, Entry] = {path: _entry(digest) for path, digest in self._digests.items()}
        body = document.Document(
            store=self._parts.config.id,
            id=commit,
            run=DEFAULT_RUN,
            step=self._step,
            parent=None,
            created=time.time(),
            metadata={},
            content=b"",
            packs=tuple(needs),
            manifest=Manifest(entries, {}),
        )
        return document.encode(body)


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


def _entry(digest: bytes) -> TensorEntry:
    return TensorEntry("torch", "float32", 4, _SHAPE, _SHAPE, digest)


def _pack(digests: Sequence[bytes]) -> NewPack:
    name = uuid.uuid4().hex
    chunks = [ChunkLocation(digest, name, at * _BYTES, _BYTES, _BYTES, 0) for at, digest in enumerate(digests)]
    return NewPack(name, len(chunks) * _BYTES, chunks)
