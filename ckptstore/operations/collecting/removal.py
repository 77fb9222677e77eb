"""What is to go leaves the store: condemned under the catalog's lock, and only after that removed from storage.

So every step can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ckptstore.batching import batched
from ckptstore.catalog.records import Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import ObjectNotFound
from ckptstore.format import version
from ckptstore.format.document import PREFIX as DOCUMENTS
from ckptstore.format.keys import PREFIX as KEYS
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.format.packs import pack_key
from ckptstore.format.tagging import PREFIX as TAGS
from ckptstore.progress import ProgressCallback, meter
from ckptstore.storage.base import Storage, Sweeping

_UNFINISHED_SECONDS = 3600.0
"""How long nobody must have written to an unfinished file; a slow disk may need minutes to flush one."""

_WRITTEN = (PACKS, DOCUMENTS, TAGS, KEYS, version.KEY)
"""Where writers of this store may have left something; what else lies there is somebody else's."""


class Going:
    """Counts the packs that go: each once, when it is rewritten or removed, or else at the end."""

    def __init__(
        self, chunks: ChunkStore, grace: float, rewrite: Collection[str], progress: ProgressCallback | None
    ) -> None:
        self._left: dict[str, int] = {}
        if progress is not None:  # otherwise nobody needs to know
            catalog = chunks.catalog
            names = {*catalog.garbage(grace).packs, *rewrite}
            self._left = {pack.name: pack.size for pack in catalog.packs() if pack.name in names}
        self._advance = meter(progress, "gc", sum(self._left.values()))

    def dealt_with(self, packs: Collection[str]) -> None:
        """These, of which some may be counted already."""
        if known := self._left.keys() & packs:
            self._advance(sum(self._left.pop(pack) for pack in known))

    def over(self) -> None:
        """Whatever is left was another gc's, or is needed again."""
        self.dealt_with(list(self._left))


def collect(chunks: ChunkStore, grace: float, going: Going) -> Iterator[tuple[Objects, int]]:
    """What was condemned and removed, and its bytes, in parts, since a commit waits while one is condemned."""
    catalog = chunks.catalog

    def settle(done: Objects) -> None:
        catalog.settle(done)
        going.dealt_with(done.packs)

    while (condemned := catalog.condemn(grace)) != Objects([], []):
        yield condemned, remove(chunks.storage, condemned, settle)


def remove(storage: Storage, gone: Objects, settle: Callable[[Objects], None] = lambda _: None) -> int:
    """Delete objects, documents first, so that a rebuild never meets a document without its packs.

    Returns the bytes of the packs, those included that dead writers left. `settle` is given what is done.
    """
    freed = 0
    for key in gone.documents:
        storage.delete(key)
    settle(Objects(documents=gone.documents))
    for batch in batched(gone.packs, 64):
        for pack in batch:
            freed += pack_size(storage, pack)
            storage.delete(pack_key(pack))
        settle(Objects(packs=batch))
    return freed


def pack_size(storage: Storage, pack: str) -> int:
    """Its bytes in storage; 0 when it is not there."""
    try:
        return storage.head(pack_key(pack)).size
    except ObjectNotFound:
        return 0


def sweep_unfinished(storage: Storage) -> int:
    """Remove what killed writers left; how many there were."""
    if not isinstance(storage, Sweeping):
        return 0
    return sum(storage.sweep_temporary(prefix, _UNFINISHED_SECONDS) for prefix in _WRITTEN)
