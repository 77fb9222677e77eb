"""Manifest documents that are damaged in storage or in the catalog: one mends the other, or another store both."""

from __future__ import annotations

from collections.abc import Callable

from ckptstore.catalog.base import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, ObjectNotFound, StepNotFound
from ckptstore.format import document


def address_of(commit: CommitRecord) -> str:
    """As "run@step"."""
    return f"{commit.run}@{commit.step}"


def unreadable(chunks: ChunkStore) -> list[str]:
    """Commits, live and deleted, whose manifest the catalog does not have whole."""
    return [address_of(commit) for commit in chunks.catalog.commits(deleted=True) if not _is_readable(chunks, commit)]


def _is_readable(chunks: ChunkStore, commit: CommitRecord) -> bool:
    return _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id)) is not None


def mend(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bool:
    """Put a whole document wherever it is not; whether there is one."""
    whole = whole_document(chunks, commit, source)
    if whole is None:
        return False
    if _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id)) is None:
        chunks.catalog.replace_manifest(commit.id, whole)
    if _valid(chunks, commit, lambda: chunks.storage.get(commit.document)) != whole:
        chunks.storage.delete(commit.document)
        chunks.storage.put(commit.document, [whole])
    return True


def whole_document(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bytes | None:
    """The document, from wherever it is whole."""
    places = [lambda: chunks.catalog.manifest(commit.id), lambda: chunks.storage.get(commit.document)]
    if source is not None:
        places.append(lambda: source.catalog.manifest(commit.id))
    return next((data for place in places if (data := _valid(chunks, commit, place)) is not None), None)


def _valid(chunks: ChunkStore, commit: CommitRecord, read: Callable[[], bytes]) -> bytes | None:
    """The document's bytes if they are those of the commit."""
    try:
        data = read()
        written = chunks.decode_document(data, commit.document)
    except (CorruptData, ObjectNotFound, StepNotFound):
        return None
    digest = chunks.digest.compute(document.encode_manifest(written.manifest))
    return data if (written.id, written.content, digest) == (commit.id, commit.content, commit.content) else None
