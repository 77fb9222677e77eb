"""What goes into the catalog and comes out of it: commits, runs, tags, packs, and where chunks lie; frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ckptstore.format.manifest import split_digests

LATEST = "latest"
"""What names a run's newest commit."""

DELETED = " (deleted)"
"""What follows a deleted commit's address wherever that is shown."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit as the catalog knows it.

    Attributes:
        id: random 32-hex name.
        run, step: its address.
        parent: id of the commit it was made on top of; None for a first one or when that was purged.
        parent_ref: the same as `run@step`.
        created: seconds since 1970, the database's clock; of a copy, or one that was entered anew, as it was made.
        metadata: what the user gave; JSON.
        content: digest of the manifest's content, the same for the same state.
        document: storage key of the manifest document.
        leaves, logical_bytes: size of the state; tied tensors counted once.
        new_bytes: what this commit added to storage.
        deleted: when it was deleted, or None; a deleted commit can be restored until gc purges it.
        tags: names that point at it.
    """

    id: str
    run: str
    step: int
    parent: str | None
    created: float
    metadata: Mapping[str, Any] = field(hash=False)
    content: bytes = field(repr=False)
    document: str = field(repr=False)
    leaves: int
    logical_bytes: int
    new_bytes: int
    parent_ref: str | None = None
    deleted: float | None = None
    tags: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`run@step`."""
        return f"{self.run}@{self.step}"

    @property
    def label(self) -> str:
        """The address, and after it ` (deleted)` if that is so: a live commit may be at the same one."""
        return self.address if self.deleted is None else f"{self.address}{DELETED}"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run.

    Attributes:
        name: its name.
        created: seconds since 1970, the database's clock.
        commits: how many live ones it has.
        latest: its highest step; None without a live commit.
        forked_from: `run@step` of the commit that it began from, or None.
    """

    name: str
    created: float
    commits: int
    latest: int | None
    forked_from: str | None


@dataclass(frozen=True, slots=True)
class TagRecord:
    """A tag of a run, id and step of the commit that it points at, and the storage key of the document that says so.

    A tag that was made before schema 0003 has no document, "", until gc stores one.
    """

    run: str
    name: str
    commit: str
    step: int
    document: str


class ChunkLocation(msgspec.Struct, frozen=True, gc=False):
    """Where a chunk's frame lies: `length` bytes of payload at `offset` of `pack`, encoded by `codec`.

    `base` holds the digests of the chunks that the encoding rests on, one after the other.
    """

    digest: bytes
    pack: str
    offset: int
    length: int
    raw_length: int
    codec: int
    base: bytes = b""

    @property
    def bases(self) -> list[bytes]:
        """The digests of the chunks that it is decoded from."""
        return split_digests(self.base, len(self.digest))


@dataclass(frozen=True, slots=True)
class NewPack:
    """A pack that was written and is about to become live, with its chunks' locations."""

    name: str
    size: int
    chunks: Sequence[ChunkLocation]


@dataclass(frozen=True, slots=True)
class NewCommit:
    """What a writer asks the catalog to make true in one transaction.

    `packs` are this session's own; `needs` has the name of every pack that the manifest relies on, its own too, and how
    many bytes of its payloads. `parent` is a commit id; `manifest` is the whole manifest document; `created` is now
    unless it is given.
    """

    id: str
    run: str
    step: int
    parent: str | None
    metadata: Mapping[str, Any]
    content: bytes
    document: str
    manifest: bytes
    leaves: int
    logical_bytes: int
    new_bytes: int
    packs: Sequence[NewPack] = ()
    needs: Mapping[str, int] = field(default_factory=dict)
    created: float | None = None


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Packs that take the place of others: what a writer asks the catalog to make true in one transaction.

    Attributes:
        packs: this session's own.
        instead_of: names of the packs that the commits shall not need any more.
        needs: commit id → pack name → bytes needed of it, in their stead; of every commit that the rewrite is about.
        lost: commit id → digests of the chunks it needs that no pack holds any more.
        damaged: whether those packs are bad: nothing may be found in them any more, and no other commit may need them.
    """

    packs: Sequence[NewPack]
    instead_of: Sequence[str]
    needs: Mapping[str, Mapping[str, int]]
    lost: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class PackRecord:
    """A pack as the catalog knows it.

    Attributes:
        name: random 32-hex name.
        state: pending, live, damaged, condemned or deleted.
        size: bytes of the object.
        created: when it was reserved.
        needed_by: how many commits, live or deleted, need it.
        needed_bytes: the most that one of them needs of it; 0 when that is not known.
        verified: when its bytes were last found to be as they were written, or None.
    """

    name: str
    state: str
    size: int
    created: float
    needed_by: int
    needed_bytes: int
    verified: float | None


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects in storage: documents of commits and tags by their keys, packs by their names."""

    documents: Sequence[str] = ()
    packs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LeftOutDocument:
    """The document of a commit that a rebuild could not enter, by its storage key, and the commit's address."""

    document: str
    run: str
    step: int


@dataclass(frozen=True, slots=True)
class CatalogStats:
    """Counts over the whole store.

    Attributes:
        runs, commits, deleted_commits: how many there are; `commits` are the live ones.
        packs: state, such as "live", → how many there are.
        stored_bytes, chunks: bytes and chunks in live packs, as stored.
        logical_bytes: of the states of all live commits, each counted whole.
    """

    runs: int
    commits: int
    deleted_commits: int
    packs: Mapping[str, int] = field(default_factory=dict)
    stored_bytes: int = 0
    logical_bytes: int = 0
    chunks: int = 0
