"""Objects in storage that the catalog does not need: left by writers that were late, or by power cuts.

An object that the catalog knows to be gone may be removed: its name is never used again. One that it never heard of
may belong to a commit of a newer catalog than this one, which was then restored from a copy, or to one that is damaged:
as soon as there is one such commit, or what may be one, nothing is an orphan. What is of another store is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Literal

from ckptstore.catalog.places import Places
from ckptstore.catalog.records import ChunkLocation, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, GcRefused, ObjectNotFound
from ckptstore.format.document import PREFIX as MANIFESTS
from ckptstore.format.document import Document, is_document_key
from ckptstore.format.envelope import is_sealed
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.operations.footers import pack_name, read_any_pack
from ckptstore.operations.manifests import document_digests, missing_digests
from ckptstore.operations.problem import DAMAGE, OLDER
from ckptstore.operations.tags import tag_keys
from ckptstore.operations.verifying.tags import unknown_tags
from ckptstore.storage.base import ObjectInfo, Storage

_BRING_BACK = "from a copy and rebuild the catalog, or remove it"
_PROBLEMS = {
    "whole": f"is a whole commit that the catalog does not know: {OLDER}",
    "damaged": f"is a damaged commit that the catalog does not know: bring back its packs {_BRING_BACK}",
    "unreadable": "is damaged, or sealed with another key, and may be a commit that the catalog does not know: "
    f"bring it back {_BRING_BACK}",
}
_SETTLED_SECONDS = 24 * 3600.0
"""Somebody may still be writing to what the catalog never heard of, with another catalog."""


Condition = Literal["whole", "damaged", "unreadable"]


def orphans(chunks: ChunkStore) -> Objects:
    """What may be removed. Raises GcRefused for commits that the catalog does not know, also damaged ones, and tags."""
    packs, documents = dict(_packs(chunks.storage)), dict(_documents(chunks.storage))
    listed = Objects(sorted(documents), sorted(packs))
    unknown = chunks.catalog.unknown(listed)
    for key, condition in _commits(chunks, unknown.documents, packs):
        raise _refusal(chunks, key, _PROBLEMS[condition])
    _check_tags_known(chunks)
    taken = Objects([*listed.documents, *tag_keys(chunks)], listed.packs)
    gone, settled = chunks.catalog.gone(taken), time.time() - _SETTLED_SECONDS
    others = _of_other_stores(chunks, unknown.documents)
    late_documents = [key for key in unknown.documents if documents[key].modified < settled and key not in others]
    needed = set(chain.from_iterable(others.values()))
    late_packs = [name for name in unknown.packs if packs[name].modified < settled and name not in needed]
    return Objects(sorted([*gone.documents, *late_documents]), sorted([*gone.packs, *late_packs]))


def check_not_older(chunks: ChunkStore) -> None:
    """Raises GcRefused when the storage has what may be a whole commit, or a tag, that the catalog does not know.

    What the catalog takes for useless may be of such commits. Those of writers at work are known: they are reserved.
    """
    for key, condition in _unknown(chunks, [key for key, _ in _documents(chunks.storage)]):
        if condition != "damaged":  # of which something is lost already
            raise _refusal(chunks, key, _PROBLEMS[condition])
    _check_tags_known(chunks)


def _check_tags_known(chunks: ChunkStore) -> None:
    for key, detail in unknown_tags(chunks):
        raise _refusal(chunks, key, detail)


def unknown_commits(chunks: ChunkStore, documents: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of the documents that are, or may be, of commits which the catalog does not know, each with the reason."""
    return ((key, _PROBLEMS[condition]) for key, condition in _unknown(chunks, documents))


def _unknown(chunks: ChunkStore, documents: Iterable[str]) -> Iterator[tuple[str, Condition]]:
    unknown = chunks.catalog.unknown(Objects(sorted(documents))).documents
    return _commits(chunks, unknown, dict(_packs(chunks.storage)) if unknown else {})


def _documents(storage: Storage) -> Iterator[tuple[str, ObjectInfo]]:
    return ((info.key, info) for info in storage.list(MANIFESTS) if is_document_key(info.key))


def _packs(storage: Storage) -> Iterator[tuple[str, ObjectInfo]]:
    for info in storage.list(PACKS):
        with suppress(CorruptData):  # some file of somebody else
            yield pack_name(info), info


def _commits(
    chunks: ChunkStore, documents: Sequence[str], packs: Mapping[str, ObjectInfo]
) -> Iterator[tuple[str, Condition]]:
    """Those of the documents that are of this store, as far as that can be read; whole ones have all their chunks, also
    in packs in which the catalog finds nothing.
    """
    if not documents:
        return
    live = {pack.name for pack in chunks.catalog.packs() if pack.state == "live"}
    others = [info for name, info in packs.items() if name not in live]
    places, known = Places(), set[bytes]()
    for chunk in chain.from_iterable(_chunks_of(chunks.storage, info) for info in others):
        places.add(0, chunk)
    for key in documents:
        written = _read(chunks, key)
        if written == "unreadable":
            yield key, written
        elif written is not None and written.store == chunks.config.id:
            digests = document_digests(written, chunks.digest.size)
            for copy in chunks.catalog.copies(sorted(digests - known)):
                places.add(0, copy)
            known |= digests
            yield key, "damaged" if missing_digests(written, places, chunks.digest.size) else "whole"


def _refusal(chunks: ChunkStore, key: str, detail: str) -> GcRefused:
    return GcRefused(f"catalog {chunks.catalog.url}: {key} {detail}")


def _chunks_of(storage: Storage, info: ObjectInfo) -> Sequence[ChunkLocation]:
    try:
        return read_any_pack(storage, info).chunks
    except (CorruptData, ObjectNotFound):
        return ()


def _of_other_stores(chunks: ChunkStore, documents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Those of the documents that somebody wrote here for another store, and the packs that they need."""
    found = ((key, _read(chunks, key)) for key in documents)
    return {key: it.packs for key, it in found if isinstance(it, Document) and it.store != chunks.config.id}


def _read(chunks: ChunkStore, key: str) -> Document | Literal["unreadable"] | None:
    """None for what is not there any more, or that of an encrypted store, which this one is not."""
    try:
        data = chunks.storage.get(key)
        return None if chunks.sealer is None and is_sealed(data) else chunks.decode_document(data, key)
    except ObjectNotFound:
        return None
    except DAMAGE:
        return "unreadable"
