"""Short ways to make commits in a catalog that has no storage beneath it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import ChunkLocation, CommitRecord, NewCommit, NewPack, Objects, Rewrite

LEASE = 3600.0


def digest(name: str) -> bytes:
    """A 16-byte digest that is easily told apart."""
    return name.encode().ljust(16, b"\0")


def new_pack(*names: str, on: Sequence[str] = ()) -> NewPack:
    """A pack with a random name and a chunk of 10 bytes for each name, which rests `on` others."""
    pack, base = uuid.uuid4().hex, b"".join(map(digest, on))
    chunks = [ChunkLocation(digest(name), pack, 64 + 10 * i, 10, 20, 1, base) for i, name in enumerate(names)]
    return NewPack(pack, 100 + 10 * len(names), chunks)


def new_commit(
    step: int = 0,
    packs: Sequence[NewPack] = (),
    uses: Sequence[str] = (),
    *,
    run: str = "main",
    parent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    content: str | None = None,
) -> NewCommit:
    """A commit with a random id, which needs 10 bytes of each pack it uses; its content is its step's unless named."""
    name = uuid.uuid4().hex
    return NewCommit(
        id=name,
        run=run,
        step=step,
        parent=parent,
        metadata=metadata or {},
        content=digest(content or f"state {step}"),
        document=f"manifests/{run}/{step}-{name}",
        manifest=f"manifest of {name}".encode(),
        leaves=3,
        logical_bytes=1000,
        new_bytes=100,
        packs=packs,
        needs={pack.name: sum(chunk.length for chunk in pack.chunks) for pack in packs} | dict.fromkeys(uses, 10),
    )


def tag(catalog: Catalog, name: str, commit: CommitRecord, document: str, instead_of: str | None = None) -> str | None:
    """Point a tag at a commit, in a session of its own; the document that recorded it before."""
    session = catalog.open_session(LEASE)
    catalog.reserve(session, (), document)
    return catalog.tag(session, name, commit, document, instead_of)


def begin(catalog: Catalog, new: NewCommit) -> str:
    """A session that has reserved what `new` brings; only the commit is left to do."""
    session = catalog.open_session(LEASE)
    catalog.reserve(session, [pack.name for pack in new.packs], document=new.document)
    return session


def make(catalog: Catalog, new: NewCommit) -> CommitRecord:
    """The whole of a commit."""
    return catalog.commit(begin(catalog, new), new)


def rewriting(catalog: Catalog, new: Rewrite) -> None:
    """The whole of a rewrite."""
    session = catalog.open_session(LEASE)
    catalog.reserve(session, [pack.name for pack in new.packs])
    catalog.rewrite(session, new)


def delete(catalog: Catalog, run: str, *steps: int) -> None:
    """Delete the commits that are at these steps now."""
    catalog.delete([catalog.find(run, step) for step in steps])


def collect(catalog: Catalog, grace: float = 0.0) -> tuple[list[str], list[str]]:
    """One gc round to its end; the documents and the packs that went."""
    documents: list[str] = []
    packs: list[str] = []
    while (gone := catalog.condemn(grace)) != Objects([], []):
        catalog.settle(gone)
        documents += gone.documents
        packs += gone.packs
    return sorted(documents), sorted(packs)


def states(catalog: Catalog) -> dict[str, str]:
    """The state of each pack that is not deleted."""
    return {pack.name: pack.state for pack in catalog.packs()}
