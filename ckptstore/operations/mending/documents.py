"""Manifest documents that are damaged in storage or in the catalog: one mends the other, or another store both."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, ObjectExists, ObjectNotFound, StepNotFound
from ckptstore.format import document


def unreadable(chunks: ChunkStore) -> list[str]:
    """Commits, live and deleted, whose manifest the catalog does not have whole, and that are not purged meanwhile."""
    lacking = [commit for commit in chunks.catalog.commits(deleted=True) if _known(chunks, commit) is None]
    return [commit.label for commit in lacking if chunks.catalog.by_id(commit.id) is not None]


class DocumentCopies(NamedTuple):
    """The document of a commit, or None where it is not whole: in the catalog, in storage, and wherever it is."""

    known: bytes | None
    stored: bytes | None
    whole: bytes | None

    @property
    def lacking(self) -> bool:
        """Whether there is a whole one, and a place that should have it and does not."""
        return self.whole is not None and (self.known is None or self.stored != self.whole)


def copies_of(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> DocumentCopies:
    """Look where the document is whole; in the other store only where it is so nowhere here."""
    known, stored = _known(chunks, commit), _valid(chunks, commit, lambda: chunks.storage.get(commit.document))
    whole = known or stored
    if whole is None and source is not None:
        whole = _valid(chunks, commit, lambda: source.catalog.manifest(commit.id))
    return DocumentCopies(known, stored, whole)


def mend(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bool:
    """Put a whole document wherever it is lacking; whether that was anywhere. What is purged meanwhile stays purged."""
    copies = copies_of(chunks, commit, source)
    if copies.whole is None or not copies.lacking:
        return False
    if copies.known is None:
        try:
            chunks.catalog.replace_manifest(commit.id, copies.whole)
        except StepNotFound:
            return False
    if copies.stored != copies.whole:
        _replace(chunks, commit, copies.whole)
    return True


def _replace(chunks: ChunkStore, commit: CommitRecord, whole: bytes) -> None:
    chunks.storage.delete(commit.document)
    try:
        chunks.storage.put(commit.document, [whole])
    except ObjectExists:
        if chunks.storage.get(commit.document) != whole:  # otherwise another repair was faster
            raise
    if chunks.catalog.by_id(commit.id) is None:  # gc purged it meanwhile, and does not come for it again
        chunks.storage.delete(commit.document)


def _known(chunks: ChunkStore, commit: CommitRecord) -> bytes | None:
    return _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id))


def _valid(chunks: ChunkStore, commit: CommitRecord, read: Callable[[], bytes]) -> bytes | None:
    """The document's bytes if they are those of the commit."""
    try:
        data = read()
        written = chunks.decode_document(data, commit.document)
    except (CorruptData, ObjectNotFound, StepNotFound):
        return None
    digest = chunks.digest.compute(document.encode_manifest(written.manifest))
    return data if (written.id, written.content, digest) == (commit.id, commit.content, commit.content) else None
