"""What verification, repair and the sweep of orphans ask and tell the catalog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Column, Connection, delete, insert, select, update

from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.queries import LOCATIONS, in_lists, purged
from ckptstore.catalog.records import ChunkLocation, Objects
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    gone_documents,
    loose_documents,
    lost_chunks,
    manifests,
    packs,
    tags,
)


def users(db: Connection, pack: str) -> list[str]:
    """Ids of the commits that need a pack."""
    needing = select(commits.c.id).select_from(commit_packs).join(commits).join(packs)
    return list(db.execute(needing.where(packs.c.name == pack).order_by(commits.c.key)).scalars())


def copies(db: Connection, digests: Sequence[bytes]) -> list[ChunkLocation]:
    """Every place in a live pack where one of these chunks lies."""
    found: list[ChunkLocation] = []
    for some in in_lists(list(dict.fromkeys(digests))):
        live = LOCATIONS.where(chunks.c.digest.in_(some), packs.c.state == "live")
        found += [ChunkLocation(*row) for row in db.execute(live)]
    return found


def lost(db: Connection) -> dict[bytes, list[str]]:
    """Digest → ids of the commits that need it."""
    found: dict[bytes, list[str]] = defaultdict(list)
    for digest, commit in db.execute(select(lost_chunks.c.digest, commits.c.id).join(commits)):
        found[bytes(digest)].append(commit)
    return dict(found)


def forget_lost(db: Connection, digests: Sequence[bytes]) -> None:
    """Whoever lost them."""
    for some in in_lists(digests):
        db.execute(delete(lost_chunks).where(lost_chunks.c.digest.in_(some)))


def gone(db: Connection, listed: Objects) -> Objects:
    """Which of these were removed already."""
    documents = _among(db, gone_documents.c.document, listed.documents)
    return Objects(sorted(documents), sorted(_among(db, packs.c.name, listed.packs, state="deleted")))


def unknown(db: Connection, listed: Objects) -> Objects:
    """Which of these nobody ever reserved."""
    known = {
        document
        for column in (gone_documents.c.document, loose_documents.c.document, commits.c.document, tags.c.document)
        for document in _among(db, column, listed.documents)
    }
    here = _among(db, packs.c.name, listed.packs)
    return Objects(sorted(set(listed.documents) - known), sorted(set(listed.packs) - here))


def mark_verified(db: Connection, names: Sequence[str]) -> None:
    """Record the time."""
    for some in in_lists(names):
        db.execute(update(packs).where(packs.c.name.in_(some)).values(verified=Clock()))


def replace_manifest(db: Connection, commit: str, data: bytes) -> None:
    """Give a commit its manifest document back."""
    key = db.execute(select(commits.c.key).where(commits.c.id == commit)).scalar()
    if key is None:
        raise purged(commit)
    db.execute(delete(manifests).where(manifests.c.commit == key))
    db.execute(insert(manifests).values(commit=key, data=data))


def _among(db: Connection, column: Column[str], names: Sequence[str], *, state: str | None = None) -> set[str]:
    found: set[str] = set()
    for some in in_lists(names):
        wanted = select(column).where(column.in_(some))
        found.update(db.execute(wanted if state is None else wanted.where(packs.c.state == state)).scalars())
    return found
