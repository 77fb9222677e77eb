"""Manifest documents that are damaged in storage or in the catalog: one mends the other, or another store both."""

from __future__ import annotations

from collections.abc import Callable

from ckptstore.catalog.base import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, ObjectExists, ObjectNotFound, StepNotFound
from ckptstore.format import document
from ckptstore.operations.publish import discard


def address_of(commit: CommitRecord) -> str:
    """As "run@step"."""
    return f"{commit.run}@{commit.step}"


def unreadable(chunks: ChunkStore) -> list[str]:
    """Commits, live and deleted, whose manifest the catalog does not have whole."""
    return [address_of(commit) for commit in chunks.catalog.commits(deleted=True) if _known(chunks, commit) is None]


def whole_document(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bytes | None:
    """The document, from wherever it is whole."""
    whole = _known(chunks, commit) or _stored(chunks, commit)
    if whole is None and source is not None:
        return _valid(chunks, commit, lambda: source.catalog.manifest(commit.id))
    return whole


def lacks(chunks: ChunkStore, commit: CommitRecord, whole: bytes) -> bool:
    """Whether the document is not everywhere where it should be."""
    return _known(chunks, commit) is None or _stored(chunks, commit) != whole


def mend(chunks: ChunkStore, commit: CommitRecord, source: ChunkStore | None) -> bool:
    """Put a whole document wherever it is not; whether that was anywhere. What is purged meanwhile stays purged."""
    whole = whole_document(chunks, commit, source)
    if whole is None or not lacks(chunks, commit, whole):
        return False
    if _known(chunks, commit) is None:
        try:
            chunks.catalog.replace_manifest(commit.id, whole)
        except StepNotFound:
            return False
    if _stored(chunks, commit) != whole:
        _replace(chunks, commit, whole)
    return True


def _replace(chunks: ChunkStore, commit: CommitRecord, whole: bytes) -> None:
    chunks.storage.delete(commit.document)
    try:
        chunks.storage.put(commit.document, [whole])
    except ObjectExists:
        if _stored(chunks, commit) != whole:  # otherwise another repair was faster
            raise
    if chunks.catalog.by_id(commit.id) is None:  # gc purged it meanwhile, and does not come for it again
        discard(chunks.storage, [commit.document])


def _known(chunks: ChunkStore, commit: CommitRecord) -> bytes | None:
    return _valid(chunks, commit, lambda: chunks.catalog.manifest(commit.id))


def _stored(chunks: ChunkStore, commit: CommitRecord) -> bytes | None:
    return _valid(chunks, commit, lambda: chunks.storage.get(commit.document))


def _valid(chunks: ChunkStore, commit: CommitRecord, read: Callable[[], bytes]) -> bytes | None:
    """The document's bytes if they are those of the commit."""
    try:
        data = read()
        written = chunks.decode_document(data, commit.document)
    except (CorruptData, ObjectNotFound, StepNotFound):
        return None
    digest = chunks.digest.compute(document.encode_manifest(written.manifest))
    return data if (written.id, written.content, digest) == (commit.id, commit.content, commit.content) else None
