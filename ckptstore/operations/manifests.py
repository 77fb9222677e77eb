"""The manifest documents of commits, from the catalog or from storage, and the chunks they need."""

from __future__ import annotations

from collections import defaultdict

from ckptstore.catalog.base import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CkptStoreError, StepNotFound
from ckptstore.format.document import Document
from ckptstore.format.manifest import chunk_digests, split_digests


def document_digests(written: Document, digest_size: int) -> set[bytes]:
    """The digests of every chunk that a document's commit needs."""
    entries = written.manifest.entries.values()
    bases = split_digests(written.bases, digest_size)
    return {digest for entry in entries for digest in chunk_digests(entry, digest_size)}.union(bases)


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
    """Which leaves of the commits that exist now need these chunks; manifests are read once more, one at a time.

    A leaf also needs what its chunks rest on.
    """
    users: dict[bytes, list[str]] = defaultdict(list)
    size = chunks.digest.size
    for commit in chunks.catalog.commits(deleted=True) if digests else ():
        try:
            written = any_document(chunks, commit)
        except CkptStoreError:
            continue  # reported already
        below = _below(chunks, written) if digests.intersection(split_digests(written.bases, size)) else {}
        for path, entry in written.manifest.entries.items():
            own = chunk_digests(entry, size)
            needed = {base for digest in own for base in below.get(digest, ())}.union(own)
            for digest in digests & needed:
                users[digest].append(f"{commit.run}@{commit.step} {path}")
    return {digest: tuple(paths) for digest, paths in users.items()}


def _below(chunks: ChunkStore, written: Document) -> dict[bytes, list[bytes]]:
    """Digest → what the chunk rests on, wherever it lies."""
    copies = chunks.catalog.copies(sorted(document_digests(written, chunks.digest.size)))
    below: dict[bytes, list[bytes]] = defaultdict(list)
    for copy in copies:
        below[copy.digest] += copy.bases
    return below
