"""The chunks of one store: a storage, the catalog that judges it, and the settings both follow."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial

from ckptstore.catalog.base import Catalog
from ckptstore.chunkstore.claims import Claims, SessionClaims
from ckptstore.chunkstore.encoding import Encoder
from ckptstore.chunkstore.glances import Glances
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.jobs import Fetch
from ckptstore.chunkstore.later import LOOPS
from ckptstore.chunkstore.machine_code import KEPT
from ckptstore.chunkstore.needs import Way
from ckptstore.chunkstore.pace import Pace
from ckptstore.chunkstore.payloads import Payloads
from ckptstore.chunkstore.reader import fetch
from ckptstore.chunkstore.scratch import Scratch
from ckptstore.chunkstore.writer import ChunkWriter
from ckptstore.errors import StorageReadOnly
from ckptstore.format import document, envelope
from ckptstore.format.codecs import Level
from ckptstore.format.codecs.making import MAKING
from ckptstore.format.digests import Digest, digest_named
from ckptstore.format.document import Document
from ckptstore.format.sealing import Sealer
from ckptstore.format.version import DELTAS, SECTORS, StoreConfig
from ckptstore.storage.base import Closing, Storage
from ckptstore.storage.wrappers import ReadOnly

_LABEL = "what other chunks rest on"


@dataclass(frozen=True, slots=True)
class ChunkStore:
    """What every operation works on; `sealer` is there when the store is encrypted, `compression` is for new chunks.

    `pace` and `glances` are what was learned from earlier commits; `background`: training goes on meanwhile.
    """

    storage: Storage
    catalog: Catalog
    config: StoreConfig
    sealer: Sealer | None = None
    compression: Level = "auto"
    background: bool = False
    pace: Pace = field(init=False, compare=False, repr=False)
    glances: Glances = field(init=False, compare=False, repr=False, default_factory=Glances)
    payloads: Payloads = field(init=False)

    def __post_init__(self) -> None:
        MAKING.get, MAKING.kept = LOOPS.get, KEPT
        key = None if self.sealer is None else self.sealer.derive("digests")
        object.__setattr__(self, "pace", Pace(far="://" in self.storage.url))
        sectors = SECTORS in self.config.requires_write
        object.__setattr__(self, "payloads", Payloads(digest_named(self.config.digest, key), self.sealer, sectors))

    @property
    def digest(self) -> Digest:
        """How chunks and manifests are named."""
        return self.payloads.digest

    def in_background(self) -> ChunkStore:
        """The same, for commits beside training."""
        return self._but(background=True)

    def asking(self, catalog: Catalog) -> ChunkStore:
        """The same, which asks this catalog."""
        return self._but(catalog=catalog)

    def _but(self, **changed: object) -> ChunkStore:
        """A copy that learns together with this one, unlike those of `replace`."""
        same = copy(self)
        for name, value in changed.items():
            object.__setattr__(same, name, value)
        return same

    def close(self) -> None:
        """Give back connections and open files; they are made again when needed."""
        self.catalog.close()
        if isinstance(self.storage, Closing):
            self.storage.close()

    def check_writable(self) -> None:
        """Raises StorageReadOnly for a store that was opened for reading only."""
        if isinstance(self.storage, ReadOnly):
            raise StorageReadOnly(self.storage.refusal)

    def writer(self, session: str, *, refuse: Exception | None = None, advance: Advance = ignore) -> ChunkWriter:
        """A writer for a session; with `refuse`, that is raised before a chunk is stored that is new and not lost."""
        return self.claiming_writer(SessionClaims(self.catalog, session), refuse=refuse, advance=advance)

    def claiming_writer(
        self, claims: Claims, *, refuse: Exception | None = None, advance: Advance = ignore
    ) -> ChunkWriter:
        """A writer that asks `claims` instead of the catalog; see `writer`."""
        way = Way(self.sealer is not None, self.storage.copies)
        raw = partial(self.raw, scratch=Scratch())
        encoder = Encoder(self.compression, self.pace, way, self._may_rest, raw, background=self.background)
        lost = self.catalog.lost().keys() if refuse is not None else frozenset[bytes]()
        return ChunkWriter(self.storage, claims, self.payloads, encoder, refuse, lost, advance)

    def _may_rest(self, digests: set[bytes]) -> set[bytes]:
        """None in a store of old, whose readers know nothing of it, nor what commits have lost: whole ones heal."""
        return digests - self.catalog.lost().keys() if DELTAS in self.config.requires_gc else set()

    def fetch(
        self,
        wishes: Sequence[Fetch],
        *,
        budget: int | None = None,
        beside: int = 0,
        advance: Advance = ignore,
        scratch: Scratch | None = None,
    ) -> None:
        """Fulfil every wish; see `reader.fetch`. Who fetches again and again keeps a `scratch` for that."""
        fetch(self.storage, self.catalog, self.payloads, wishes, budget, beside, advance, scratch or Scratch())

    def raw(self, digests: Sequence[bytes], scratch: Scratch | None = None) -> list[memoryview]:
        """The raw bytes of chunks. Raises MissingData, CorruptData."""
        found = self.catalog.locate(digests)
        made = {digest: memoryview(bytearray(found[digest].raw_length if digest in found else 0)) for digest in digests}
        self.fetch([Fetch(digest, len(raw), _LABEL, out=raw) for digest, raw in made.items()], scratch=scratch)
        return [made[digest] for digest in digests]

    def encode_document(self, written: Document, key: str) -> bytes:
        """The bytes of a manifest document as they are stored under a key."""
        return envelope.seal(document.encode(written), key, self.sealer)

    def decode_document(self, data: bytes, key: str) -> Document:
        """The manifest document that was stored under a key. Raises CorruptData."""
        return document.decode(envelope.unseal(data, key, self.sealer, f"manifest document {key}"), key)
