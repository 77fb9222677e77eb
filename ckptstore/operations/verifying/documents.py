"""Whether the manifest document of a commit is whole, in the catalog and in storage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import StepNotFound
from ckptstore.format import document
from ckptstore.format.document import Document
from ckptstore.format.manifest import check_consistent
from ckptstore.operations.manifests import document_digests
from ckptstore.operations.problem import DAMAGE, Problem
from ckptstore.operations.verifying.needs import Needs


def check_record(chunks: ChunkStore, commit: CommitRecord, needs: Needs, wanted: set[bytes]) -> Iterator[Problem]:
    """The catalog's own: adds the digests of the commit's chunks to `wanted`."""
    here = commit.label
    try:
        written = chunks.decode_document(chunks.catalog.manifest(commit.id), commit.document)
        check_consistent(written.manifest, chunks.digest.size, f"the manifest of {here}")
        digests = document_digests(written, chunks.digest.size)
        wanted |= digests
        parent = written.parent if commit.parent is not None else None  # a purged parent is forgotten
        if _identity(commit) != _identity(msgspec.structs.replace(written, parent=parent)):
            yield Problem("catalog", f"the record of {here} contradicts its manifest", affected=(here,))
        if chunks.digest.compute(document.encode_manifest(written.manifest)) != written.content:
            yield Problem("catalog", f"the manifest of {here} does not have its digest", affected=(here,))
        yield from needs.check(commit, written, digests)
    except DAMAGE as error:
        yield Problem("catalog", str(error), affected=(here,))


def check_length(chunks: ChunkStore, commit: CommitRecord, size: int | None) -> Iterator[Problem]:
    """Of the one in storage, which has `size` bytes, or is missing."""
    here = commit.label
    if size is None:
        yield Problem(commit.document, "is missing", affected=(here,))
        return
    with suppress(StepNotFound):  # which the check of the record reports
        expected = len(chunks.catalog.manifest(commit.id))
        if size != expected:
            yield Problem(commit.document, f"has {size} bytes in place of {expected}", affected=(here,))


def check_stored(chunks: ChunkStore, commit: CommitRecord, wanted: set[bytes]) -> Iterator[Problem]:
    """The one in storage, beside the catalog's: where it is another, adds the digests of its chunks to `wanted`."""
    here = commit.label
    try:
        stored = chunks.storage.get(commit.document)
        if stored != chunks.catalog.manifest(commit.id):
            wanted |= document_digests(chunks.decode_document(stored, commit.document), chunks.digest.size)
            yield Problem(commit.document, f"differs from the catalog's manifest of {here}", affected=(here,))
    except DAMAGE as error:
        yield Problem(commit.document, str(error), affected=(here,))


def _identity(commit: CommitRecord | Document) -> tuple[object, ...]:
    metadata = json.dumps(commit.metadata, sort_keys=True)  # as text, since NaN is not equal to itself
    return commit.id, commit.run, commit.step, commit.parent, commit.content, metadata
