"""The manifest documents of commits, from the catalog or from storage, and the chunks they need."""

from __future__ import annotations

from collections import defaultdict

from ckptstore.catalog.base import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CkptStoreError, StepNotFound
from ckptstore.format.document import Document
from ckptstore.format.manifest import chunk_digests


def document_digests(written: Document, digest_size: int) -> set[bytes]:
    """The digests of every chunk that a document's commit needs."""
    entries = written.manifest.entries.values()
    return {digest for entry in entries for digest in chunk_digests(entry, digest_size)}


def commit_digests(chunks: ChunkStore, commit: str) -> set[bytes]:
    """The digests of every chunk that a commit id needs. Raises StepNotFound when it was purged."""
    data, record = chunks.catalog.manifest(commit), chunks.catalog.by_id(commit)
    if record is None:
        raise StepNotFound(f"no commit {commit}: it was purged")
    return document_digests(chunks.decode_document(data, record.document), chunks.digest.size)


def any_document(chunks: ChunkStore, commit: CommitRecord) -> Document:
    """A commit's document, from storage when the catalog's is damaged."""
    try:
        return chunks.decode_document(chunks.catalog.manifest(commit.id), commit.document)
    except CkptStoreError:
        return chunks.decode_document(chunks.storage.get(commit.document), commit.document)


def users_of(chunks: ChunkStore, digests: set[bytes]) -> dict[bytes, tuple[str, ...]]:
    """Which leaves of the commits that exist now need these chunks; manifests are read once more, one at a time."""
    users: dict[bytes, list[str]] = defaultdict(list)
    for commit in chunks.catalog.commits(deleted=True) if digests else ():
        try:
            written = any_document(chunks, commit)
        except CkptStoreError:
            continue  # reported already
        for path, entry in written.manifest.entries.items():
            for digest in digests.intersection(chunk_digests(entry, chunks.digest.size)):
                users[digest].append(f"{commit.run}@{commit.step} {path}")
    return {digest: tuple(paths) for digest, paths in users.items()}
