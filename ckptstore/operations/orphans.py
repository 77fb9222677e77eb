"""Objects in storage that the catalog does not need: left by writers that were late, or by power cuts.

An object that the catalog knows to be gone may be removed: its name is never used again. One that it never heard of
may belong to a commit of a newer catalog than this one, which was then restored from a copy: as soon as one such
commit can be read, nothing is an orphan. What is of another store is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from ckptstore.catalog.places import Places
from ckptstore.catalog.records import ChunkLocation, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, GcRefused, ObjectNotFound
from ckptstore.format.document import Document, is_document_key
from ckptstore.operations.footers import pack_name, read_any_pack
from ckptstore.operations.manifests import document_digests, missing_digests
from ckptstore.operations.tags import tag_keys, unknown_tags
from ckptstore.storage.base import ObjectInfo, Storage

OLDER = "the catalog is older than the storage: rebuild it, or bring back a newer copy"
_SETTLED_SECONDS = 24 * 3600.0
"""Somebody may still be writing to what the catalog never heard of, with another catalog."""


def orphans(chunks: ChunkStore) -> Objects:
    """What may be removed. Raises GcRefused when the catalog is older than the storage, or that has damaged commits."""
    packs, documents = dict(_packs(chunks.storage)), dict(_documents(chunks.storage))
    listed = Objects(sorted(documents), sorted(packs))
    unknown = chunks.catalog.unknown(listed)
    for key, whole in _commits(chunks, unknown.documents, packs):
        raise _older(chunks, key) if whole else _damaged(chunks, key)
    _check_tags_known(chunks)
    taken = Objects([*listed.documents, *tag_keys(chunks)], listed.packs)
    gone, settled = chunks.catalog.gone(taken), time.time() - _SETTLED_SECONDS
    others = _of_other_stores(chunks, unknown.documents)
    late_documents = [key for key in unknown.documents if documents[key].modified < settled and key not in others]
    needed = set(chain.from_iterable(others.values()))
    late_packs = [name for name in unknown.packs if packs[name].modified < settled and name not in needed]
    return Objects(sorted([*gone.documents, *late_documents]), sorted([*gone.packs, *late_packs]))


def check_not_older(chunks: ChunkStore) -> None:
    """Raises GcRefused when the storage has a whole commit that the catalog does not know, or a tag.

    What the catalog takes for useless may be of such commits. Those of writers at work are known: they are reserved.
    """
    for key in unknown_commits(chunks, [key for key, _ in _documents(chunks.storage)]):
        raise _older(chunks, key)
    _check_tags_known(chunks)


def _check_tags_known(chunks: ChunkStore) -> None:
    for key in unknown_tags(chunks):
        told = f"{key} is a tag that the catalog {chunks.catalog.url} does not know"
        raise GcRefused(f"{told}, of a commit that it has: {OLDER}")


def unknown_commits(chunks: ChunkStore, documents: Iterable[str]) -> Iterator[str]:
    """Those of the documents that are of whole commits which the catalog does not know."""
    unknown = chunks.catalog.unknown(Objects(sorted(documents))).documents
    packs = dict(_packs(chunks.storage)) if unknown else {}
    return (key for key, whole in _commits(chunks, unknown, packs) if whole)


def _documents(storage: Storage) -> Iterator[tuple[str, ObjectInfo]]:
    return ((info.key, info) for info in storage.list("manifests/") if is_document_key(info.key))


def _packs(storage: Storage) -> Iterator[tuple[str, ObjectInfo]]:
    for info in storage.list("packs/"):
        with suppress(CorruptData):  # some file of somebody else
            yield pack_name(info), info


def _commits(
    chunks: ChunkStore, documents: Sequence[str], packs: Mapping[str, ObjectInfo]
) -> Iterator[tuple[str, bool]]:
    """Those of the documents that are of this store, and whether all their chunks are there, also in packs in which the
    catalog finds nothing.
    """
    if not documents:
        return
    live = {pack.name for pack in chunks.catalog.packs() if pack.state == "live"}
    others = [info for name, info in packs.items() if name not in live]
    places, known = Places(), set[bytes]()
    for chunk in chain.from_iterable(_chunks_of(chunks.storage, info) for info in others):
        places.add(0, chunk)
    for key in documents:
        written = _readable(chunks, key)
        if written is not None and written.store == chunks.config.id:
            digests = document_digests(written, chunks.digest.size)
            for copy in chunks.catalog.copies(sorted(digests - known)):
                places.add(0, copy)
            known |= digests
            yield key, not missing_digests(written, places, chunks.digest.size)


def _older(chunks: ChunkStore, key: str) -> GcRefused:
    return GcRefused(f"{key} is a whole commit that the catalog {chunks.catalog.url} does not know: {OLDER}")


def _damaged(chunks: ChunkStore, key: str) -> GcRefused:
    told = f"{key} is a damaged commit that the catalog {chunks.catalog.url} does not know"
    advice = "bring back its packs from a copy and rebuild the catalog, or remove it"
    return GcRefused(f"{told}, parts of which may be in packs unknown as well: {advice}")


def _chunks_of(storage: Storage, info: ObjectInfo) -> Sequence[ChunkLocation]:
    try:
        return read_any_pack(storage, info).chunks
    except (CorruptData, ObjectNotFound):
        return ()


def _of_other_stores(chunks: ChunkStore, documents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Those of the documents that somebody wrote here for another store, and the packs that they need."""
    found = ((key, _readable(chunks, key)) for key in documents)
    return {key: written.packs for key, written in found if written is not None and written.store != chunks.config.id}


def _readable(chunks: ChunkStore, key: str) -> Document | None:
    try:
        return chunks.decode_document(chunks.storage.get(key), key)
    except (CorruptData, ObjectNotFound):
        return None
