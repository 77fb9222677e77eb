"""A catalog whose database never sees a commit's metadata in clear."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CommitRecord, NewCommit
from ckptstore.errors import CatalogError, CorruptData
from ckptstore.format.sealing import Sealer

_SEALED = "sealed"
_SALT_BYTES = 16


class _SealedCatalog:
    """Passes everything on; seals metadata on its way in and opens it on its way out."""

    def __init__(self, catalog: Catalog, sealer: Sealer) -> None:
        self._catalog, self._sealer = catalog, sealer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def newest(self, run: str, most: int) -> CommitRecord | None:
        found = self._catalog.newest(run, most)
        return None if found is None else self._opened(found)

    def commits(self, run: str | None = None, *, deleted: bool = False) -> list[CommitRecord]:
        return [self._opened(commit) for commit in self._catalog.commits(run, deleted=deleted)]

    def find(self, run: str, step: int | str) -> CommitRecord:
        return self._opened(self._catalog.find(run, step))

    def by_id(self, commit: str) -> CommitRecord | None:
        found = self._catalog.by_id(commit)
        return None if found is None else self._opened(found)

    def restore(self, run: str, step: int) -> CommitRecord:
        return self._opened(self._catalog.restore(run, step))

    def commit(self, session: str, new: NewCommit) -> CommitRecord:
        return self._opened(self._catalog.commit(session, replace(new, metadata=self._sealed(new))))

    def again(self, session: str, new: NewCommit) -> CommitRecord | None:
        found = self._catalog.again(session, new)
        return None if found is None else self._opened(found)

    def enter(self, new: NewCommit) -> None:
        self._catalog.enter(replace(new, metadata=self._sealed(new)))

    def __reduce__(self) -> tuple[Any, tuple[Catalog, Sealer]]:
        return sealed_catalog, (self._catalog, self._sealer)

    def _sealed(self, new: NewCommit) -> Mapping[str, Any]:
        salt = os.urandom(_SALT_BYTES)
        data = self._sealer.seal(_place(new.id, salt), 0, json.dumps(dict(new.metadata)).encode())
        return {_SEALED: base64.b64encode(salt + data).decode()}

    def _opened(self, commit: CommitRecord) -> CommitRecord:
        try:
            data = base64.b64decode(commit.metadata[_SEALED])
            salt, sealed = data[:_SALT_BYTES], data[_SALT_BYTES:]
            return replace(commit, metadata=json.loads(self._sealer.open(_place(commit.id, salt), 0, sealed)))
        except (KeyError, TypeError, ValueError, CorruptData):
            problem = f"the metadata of {commit.address} is not sealed as it was"
            raise CatalogError(f"{problem}: bring the catalog back from a copy, or rebuild it") from None


def sealed_catalog(catalog: Catalog, sealer: Sealer | None) -> Catalog:
    """The catalog, with metadata sealed where the store is encrypted."""
    return catalog if sealer is None else cast("Catalog", _SealedCatalog(catalog, sealer))


def _place(commit: str, salt: bytes) -> str:
    """Another one each time, since a rebuilt catalog seals the same commit again."""
    return f"metadata {commit} {salt.hex()}"
