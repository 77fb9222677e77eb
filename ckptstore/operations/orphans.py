"""Objects in storage that the catalog does not need: left by writers that were late, or by power cuts.

An object that the catalog knows to be gone may be removed: its name is never used again. One that it never heard of
may belong to a commit of a newer catalog than this one, which was then restored from a copy: as soon as one such
commit is whole, nothing is an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ckptstore.catalog.base import ChunkLocation, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, GcRefused, ObjectNotFound
from ckptstore.operations.footers import pack_name, read_pack
from ckptstore.operations.manifests import document_digests
from ckptstore.storage.base import ObjectInfo, Storage

_SETTLED_SECONDS = 24 * 3600.0
"""Somebody may still be writing to what the catalog never heard of, with another catalog."""


def orphans(chunks: ChunkStore) -> Objects:
    """What may be removed. Raises GcRefused when the catalog is older than the storage."""
    packs = dict(_packs(chunks.storage))
    documents = {info.key: info for info in chunks.storage.list("manifests/")}
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
        if _is_whole(chunks, key, held):
            advice = "the catalog is older than the storage: rebuild it, or bring back a newer copy"
            raise GcRefused(f"{key} is a whole commit that the catalog {chunks.catalog.url} does not know: {advice}")


def _chunks_of(storage: Storage, info: ObjectInfo) -> Sequence[ChunkLocation]:
    try:
        return read_pack(storage, info).chunks
    except (CorruptData, ObjectNotFound):
        return ()


def _is_whole(chunks: ChunkStore, key: str, held: set[bytes]) -> bool:
    try:
        written = chunks.decode_document(chunks.storage.get(key), key)
    except (CorruptData, ObjectNotFound):
        return False
    missing = document_digests(written, chunks.digest.size) - held
    return written.store == chunks.config.id and missing <= chunks.catalog.locate(list(missing)).keys()
