"""What a new commit's chunks may rest on: the chunks in the same places of its parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ckptstore.cached import cached_property
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CkptStoreError
from ckptstore.format.manifest import Entry, TensorEntry


@dataclass
class Lineage:
    """The parent of a commit, of which nothing is read before it is asked for."""

    chunks: ChunkStore
    parent: str | None

    def base(self, path: str, entry: Entry, number: int) -> bytes:
        """The digest of a leaf's chunk in the parent; empty when the parent has no such leaf, or in another form."""
        older = self.entries.get(path)
        if not isinstance(older, TensorEntry) or form_of(older) != form_of(entry):
            return b""
        size = self.chunks.digest.size
        return older.chunks[number * size : (number + 1) * size]

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Path → entry of the parent; empty when there is none that can be read."""
        record = None if self.parent is None else self.chunks.catalog.by_id(self.parent)
        try:
            if record is not None:
                return self.chunks.decode_document(
                    self.chunks.catalog.manifest(record.id), record.document
                ).manifest.entries
        except CkptStoreError:
            pass  # it was purged meanwhile, or is damaged, which is for verify to report
        return {}


class Rest(msgspec.Struct, frozen=True, gc=False):
    """Gives what a chunk of a leaf may rest on. Each chunk has one, which Python's collector need not look at."""

    lineage: Lineage
    path: str
    entry: Entry
    number: int

    def __call__(self) -> bytes:
        """See `Lineage.base`."""
        return self.lineage.base(self.path, self.entry, self.number)


@dataclass
class StoredLineage(Lineage):
    """The same, where the parent is known by the storage key of its document: nothing is asked of the catalog."""

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """See `Lineage`."""
        if self.parent is None:
            return {}
        try:
            return self.chunks.decode_document(self.chunks.storage.get(self.parent), self.parent).manifest.entries
        except CkptStoreError:
            return {}


def form_of(entry: Entry | None) -> tuple[object, ...]:
    """What two tensors have in common whose chunks lie in the same places; empty for what is none."""
    if not isinstance(entry, TensorEntry):
        return ()
    return entry.library, entry.dtype, entry.shape, entry.chunk_shape
