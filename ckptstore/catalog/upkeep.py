"""What verification, repair, rebuilds and the sweep of orphans ask the catalog, and record in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Column, Connection, Select, bindparam, delete, insert, select, update

from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.queries import LOCATIONS, NAMES, in_lists, purged
from ckptstore.catalog.records import ChunkLocation, LeftOutDocument, Objects
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    gone_documents,
    left_out_documents,
    loose_documents,
    lost_chunks,
    manifests,
    packs,
    tags,
)


def _named(column: Column[str]) -> Select[str]:
    return select(column).where(column.in_(NAMES))


_gone_documents = _named(gone_documents.c.document)
_known_documents = (_gone_documents, *(_named(table.c.document) for table in (loose_documents, commits, tags)))
_reserved_packs = _named(packs.c.name)
_gone_packs = _reserved_packs.where(packs.c.state == "deleted")
_users = select(commits.c.id).select_from(commit_packs).join(commits).join(packs)
_users_of_pack = _users.where(packs.c.name == bindparam("pack")).order_by(commits.c.key)
_verified = update(packs).where(packs.c.name.in_(NAMES)).values(verified=Clock())


def users(db: Connection, pack: str) -> list[str]:
    """Ids of the commits that need a pack."""
    return list(db.execute(_users_of_pack, {"pack": pack}).scalars())


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
    documents, here = _among(db, _gone_documents, listed.documents), _among(db, _gone_packs, listed.packs)
    return Objects(sorted(documents), sorted(here))


def unknown(db: Connection, listed: Objects) -> Objects:
    """Which of these nobody ever reserved."""
    known = set[str]().union(*(_among(db, documents, listed.documents) for documents in _known_documents))
    here = _among(db, _reserved_packs, listed.packs)
    return Objects(sorted(set(listed.documents) - known), sorted(set(listed.packs) - here))


def leave_out(db: Connection, found: Sequence[LeftOutDocument]) -> None:
    """These, in place of what an earlier rebuild left out."""
    db.execute(delete(left_out_documents))
    if found:
        rows = [{"document": one.document, "run": one.run, "step": one.step} for one in found]
        db.execute(insert(left_out_documents), rows)


def mark_verified(db: Connection, names: Sequence[str]) -> None:
    """Record the time."""
    for some in in_lists(names):
        db.execute(_verified, {"names": some})


def replace_manifest(db: Connection, commit: str, data: bytes) -> None:
    """Give a commit its manifest document back."""
    key = db.execute(select(commits.c.key).where(commits.c.id == commit)).scalar()
    if key is None:
        raise purged(commit)
    db.execute(delete(manifests).where(manifests.c.commit == key))
    db.execute(insert(manifests).values(commit=key, data=data))


def _among(db: Connection, wanted: Select[str], names: Sequence[str]) -> set[str]:
    return {name for some in in_lists(names) for name in db.execute(wanted, {"names": some}).scalars()}
