"""Whether commits need the packs that hold their chunks, as the catalog has it: what gc spares, it spares for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ckptstore.catalog.places import Places
from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.format.document import Document
from ckptstore.operations.manifests import document_digests, missing_digests
from ckptstore.operations.problem import Problem


class Needs:
    """Which packs each commit needs, and which ones hold a chunk, as the catalog had it when this was made."""

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self._needed: dict[str, set[str]] = defaultdict(set)
        self._holding: dict[bytes, list[str]] = defaultdict(list)
        self._lost = chunks.catalog.lost()
        for pack in chunks.catalog.packs():
            for commit in chunks.catalog.users(pack.name):
                self._needed[commit].add(pack.name)
            for chunk in chunks.catalog.pack_chunks(pack.name):
                self._holding[chunk.digest].append(pack.name)

    def check(self, commit: CommitRecord, written: Document, digests: Iterable[bytes]) -> Iterator[Problem]:
        """Looks again where something seems to be wrong: gc and repair may have been at it."""
        needed = self._needed[commit.id]
        held = (digest for digest in digests if digest in self._holding and commit.id not in self._lost.get(digest, ()))
        if not any(needed.isdisjoint(self._holding[digest]) for digest in held):
            return
        if unheld := _unheld(self._chunks, commit.id, written):
            problem = f"{commit.label} is not known to need the packs of {len(unheld)} of its chunks"
            advice = "gc would take them: move the catalog away and make it anew with ckptstore rebuild"
            yield Problem("catalog", f"{problem}, {min(unheld).hex()} among them: {advice}", affected=(commit.label,))


def _unheld(chunks: ChunkStore, commit: str, written: Document) -> set[bytes]:
    """What can be decoded, but not from the packs that the commit needs now; and is not known to be lost."""
    while True:
        needed, places = _packs(chunks, commit), Places()
        for copy in chunks.catalog.copies(sorted(document_digests(written, chunks.digest.size))):
            if copy.pack in needed:
                places.add(0, copy)
        missing, lost = missing_digests(written, places, chunks.digest.size), chunks.catalog.lost()
        found = {digest for digest in chunks.catalog.locate(sorted(missing)) if commit not in lost.get(digest, ())}
        if _packs(chunks, commit) == needed:
            return found & missing


def _packs(chunks: ChunkStore, commit: str) -> set[str]:
    return {pack.name for pack in chunks.catalog.packs(commit)}
