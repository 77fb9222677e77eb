"""Objects in storage that the catalog does not need: left by writers that were late, or by power cuts.

An object that the catalog knows to be gone may be removed: its name is never used again. One that it never heard of
may belong to a commit of a newer catalog than this one, which was then restored from a copy: as soon as one such
commit can be read, nothing is an orphan, unless the catalog was rebuilt with a later commit of the same step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ckptstore.catalog.base import ChunkLocation, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, GcRefused, ObjectNotFound
from ckptstore.format.document import Document, is_document_key
from ckptstore.operations.footers import pack_name, read_pack
from ckptstore.operations.manifests import document_digests
from ckptstore.storage.base import ObjectInfo, Storage

_SETTLED_SECONDS = 24 * 3600.0
"""Somebody may still be writing to what the catalog never heard of, with another catalog."""


def orphans(chunks: ChunkStore) -> Objects:
    """What may be removed. Raises GcRefused when the catalog is older than the storage."""
    packs = dict(_packs(chunks.storage))
    documents = {info.key: info for info in chunks.storage.list("manifests/") if is_document_key(info.key)}
    listed = Objects(sorted(documents), sorted(packs))
    unknown = chunks.catalog.unknown(listed)
    _check_not_older(chunks, unknown.documents, [packs[name] for name in unknown.packs])
    gone, settled = chunks.catalog.gone(listed), time.time() - _SETTLED_SECONDS
    late_documents = [key for key in unknown.documents if documents[key].modified < settled]
    late_packs = [name for name in unknown.packs if packs[name].modified < settled]
    return Objects(sorted([*gone.documents, *late_documents]), sorted([*gone.packs, *late_packs]))


def _packs(storage: Storage) -> Iterator[tuple[str, ObjectInfo]]:
    for info in storage.list("packs/"):
        with suppress(CorruptData):  # some file of somebody else
            yield pack_name(info), info


def _check_not_older(chunks: ChunkStore, documents: Sequence[str], packs: Sequence[ObjectInfo]) -> None:
    if not documents:
        return
    held = {chunk.digest for info in packs for chunk in _chunks_of(chunks.storage, info)}
    for key in documents:
        written = _readable(chunks, key)
        if written is None or _is_superseded(chunks, written):
            continue
        unknown = f"that the catalog {chunks.catalog.url} does not know"
        if _is_whole(chunks, written, held):
            advice = "the catalog is older than the storage: rebuild it, or bring back a newer copy"
            raise GcRefused(f"{key} is a whole commit {unknown}: {advice}")
        advice = "bring back its packs from a copy and rebuild the catalog, or remove it"
        raise GcRefused(
            f"{key} is a damaged commit {unknown}, parts of which may be in packs unknown as well: {advice}"
        )


def _chunks_of(storage: Storage, info: ObjectInfo) -> Sequence[ChunkLocation]:
    try:
        return read_pack(storage, info).chunks
    except (CorruptData, ObjectNotFound):
        return ()


def _readable(chunks: ChunkStore, key: str) -> Document | None:
    """The document, if it is one of this store."""
    try:
        written = chunks.decode_document(chunks.storage.get(key), key)
    except (CorruptData, ObjectNotFound):
        return None
    return written if written.store == chunks.config.id else None


def _is_superseded(chunks: ChunkStore, written: Document) -> bool:
    """Whether a rebuild left it out for a later commit of its step.

    Only a rebuild enters a commit with the very time of its document. Nobody else's clocks are believed.
    """
    newer = chunks.catalog.newest(written.run, written.step)
    if newer is None or newer.step != written.step or newer.created < written.created:
        return False
    entered = chunks.decode_document(chunks.catalog.manifest(newer.id), newer.document)
    return entered.created == newer.created


def _is_whole(chunks: ChunkStore, written: Document, held: set[bytes]) -> bool:
    missing = document_digests(written, chunks.digest.size) - held
    return missing <= chunks.catalog.locate(list(missing)).keys()
