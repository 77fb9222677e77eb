"""The manifest documents of commits, from the catalog or from storage, and the chunks they need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from ckptstore.catalog.places import Places
from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import StepNotFound
from ckptstore.format.document import Document
from ckptstore.format.manifest import Manifest, chunk_digests, split_digests
from ckptstore.operations.problem import DAMAGE


def manifest_digests(manifest: Manifest, digest_size: int) -> set[bytes]:
    """The digests of every chunk of a state."""
    return {digest for entry in manifest.entries.values() for digest in chunk_digests(entry, digest_size)}


def document_digests(written: Document, digest_size: int) -> set[bytes]:
    """The digests of every chunk that a document's commit needs, and of what these rest on."""
    return manifest_digests(written.manifest, digest_size).union(split_digests(written.bases, digest_size))


def missing_digests(written: Document, places: Places, digest_size: int) -> set[bytes]:
    """Those chunks of a document's state that cannot be decoded from what lies at these places.

    What chunks rested on that are whole somewhere by now is not missed.
    """
    digests = document_digests(written, digest_size)
    held = places.closure(digests, within=digests)
    return manifest_digests(written.manifest, digest_size) - held.keys()


def commit_digests(chunks: ChunkStore, commit: str) -> set[bytes]:
    """The digests of every chunk that a commit id needs. Raises StepNotFound when it was purged."""
    data, record = chunks.catalog.manifest(commit), chunks.catalog.by_id(commit)
    if record is None:
        raise StepNotFound(f"no commit {commit}: it was purged")
    return document_digests(chunks.decode_document(data, record.document), chunks.digest.size)


def unheld_digests(chunks: ChunkStore, commit: str) -> set[bytes]:
    """What a commit id needs and cannot be decoded from the packs it needs. Raises StepNotFound, CorruptData."""
    digests, places = commit_digests(chunks, commit), Places()
    for pack in chunks.catalog.packs(commit):
        for chunk in chunks.catalog.pack_chunks(pack.name):
            places.add(0, chunk)
    return digests - places.closure(digests, within=digests).keys()


def any_document(chunks: ChunkStore, commit: CommitRecord) -> Document:
    """A commit's document, from storage when the catalog's is damaged."""
    try:
        return chunks.decode_document(chunks.catalog.manifest(commit.id), commit.document)
    except DAMAGE:
        return chunks.decode_document(chunks.storage.get(commit.document), commit.document)


def users_of(
    chunks: ChunkStore, digests: set[bytes], whole: Collection[bytes] = (), *, among: Collection[str] | None = None
) -> dict[bytes, tuple[str, ...]]:
    """Which leaves of the commits that exist now need these chunks; manifests are read once more, one at a time.

    A leaf also needs what its chunks rest on, but for those that are taken for `whole`. With `among`, only commits of
    these ids are looked at.
    """
    users: dict[bytes, list[str]] = defaultdict(list)
    size = chunks.digest.size
    for commit in chunks.catalog.commits(deleted=True) if digests else ():
        if among is not None and commit.id not in among:
            continue
        try:
            written = any_document(chunks, commit)
        except DAMAGE:
            continue  # reported already
        below = _below(chunks, written, whole) if digests.intersection(split_digests(written.bases, size)) else {}
        for path, entry in written.manifest.entries.items():
            for digest in digests & _with_all_below(chunk_digests(entry, size), below):
                users[digest].append(f"{commit.label} {path}")
    return {digest: tuple(paths) for digest, paths in users.items()}


def _below(chunks: ChunkStore, written: Document, taken: Collection[bytes]) -> dict[bytes, set[bytes]]:
    """Digest → what the chunk rests on, wherever it lies, if it is whole nowhere."""
    copies = chunks.catalog.copies(sorted(document_digests(written, chunks.digest.size)))
    whole = {copy.digest for copy in copies if not copy.base}.union(taken)
    below: dict[bytes, set[bytes]] = defaultdict(set)
    for copy in copies:
        if copy.digest not in whole:
            below[copy.digest].update(copy.bases)
    return below


def _with_all_below(digests: Iterable[bytes], below: Mapping[bytes, set[bytes]]) -> set[bytes]:
    found: set[bytes] = set()
    fresh = set(digests)
    while fresh:
        found |= fresh
        fresh = {base for digest in fresh for base in below.get(digest, ())} - found
    return found
