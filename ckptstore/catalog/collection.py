"""What gc may take, and taking it. Condemning runs under the store's lock, so no commit can come in between."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, literal, null, or_, select, update

from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.queries import LIVE, in_lists
from ckptstore.catalog.records import Objects
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    gone_documents,
    loose_documents,
    lost_chunks,
    manifests,
    metadata,
    packs,
    pins,
)

DECIDING = [table.name for table in metadata.sorted_tables if table not in (manifests, chunks)]
"""The tables that say what is needed: all but the large ones."""

_COMMITS_AT_ONCE = 256
_PACKS_AT_ONCE = 1024
_CHUNKS_AT_ONCE = 1 << 16
"""Bounds for one transaction, so that a commit waits for a tenth of a second at most; one pack goes in any case."""

_unowned = loose_documents.c.session.is_(None)


def garbage(db: Connection, grace: float) -> Objects:
    """What `condemn` would return."""
    overdue = _overdue(db, grace)
    documents = db.execute(
        select(loose_documents.c.document).where(_unowned).union_all(select(commits.c.document).where(overdue))
    )
    useless = db.execute(select(packs.c.name).where(or_(packs.c.state == "condemned", _useless(overdue))))
    return Objects(sorted(documents.scalars()), sorted(useless.scalars()))


def condemn(db: Connection, grace: float) -> Objects:
    """Take garbage out of the catalog, as much as others can wait for; everything that is not settled yet."""
    late = select(commits.c.key).where(_overdue(db, grace)).order_by(commits.c.deleted).limit(_COMMITS_AT_ONCE)
    overdue = commits.c.key.in_(list(db.execute(late).scalars()))
    _condemn_packs(db, _some_packs(db, _useless(overdue)))
    loosened = select(commits.c.document, null()).where(overdue)
    db.execute(insert(loose_documents).from_select(["document", "session"], loosened))
    db.execute(delete(commits).where(overdue))
    documents = db.execute(select(loose_documents.c.document).where(_unowned)).scalars()
    condemned = db.execute(select(packs.c.name).where(packs.c.state == "condemned")).scalars()
    return Objects(sorted(documents), sorted(condemned))


def settle(db: Connection, done: Objects) -> None:
    """These objects are gone from storage."""
    for documents in in_lists(done.documents):
        these = loose_documents.c.document.in_(documents) & _unowned
        db.execute(insert(gone_documents).from_select(["document"], select(loose_documents.c.document).where(these)))
        db.execute(delete(loose_documents).where(these))
    for names in in_lists(done.packs):
        condemned = update(packs).where(packs.c.name.in_(names), packs.c.state == "condemned")
        db.execute(condemned.values(state="deleted"))


def _overdue(db: Connection, grace: float) -> ColumnElement[bool]:
    """Which commits are to be purged; the clock is read once, so that all statements agree."""
    now = db.execute(select(Clock())).scalar_one()
    return commits.c.deleted <= literal(now - grace)


def _useless(overdue: ColumnElement[bool]) -> ColumnElement[bool]:
    kept = commit_packs.c.commit == commits.c.key
    needed = exists().where(commit_packs.c.pack == packs.c.key, kept, or_(LIVE, ~overdue))
    pinned = exists().where(pins.c.pack == packs.c.key)
    left_behind = (packs.c.state == "pending") & packs.c.session.is_(None)
    lost = exists().where(lost_chunks.c.commit == commits.c.key, or_(LIVE, ~overdue))
    done_with = (packs.c.state == "damaged") & ~lost
    return or_(left_behind, done_with, (packs.c.state == "live") & ~needed & ~pinned)


def _some_packs(db: Connection, useless: ColumnElement[bool]) -> list[int]:
    """Rows of the first of these packs, as many as go at once. What is left is useless the next time too."""
    found = db.execute(select(packs.c.key, packs.c.chunks).where(useless).order_by(packs.c.key).limit(_PACKS_AT_ONCE))
    keys: list[int] = []
    room = _CHUNKS_AT_ONCE
    for key, held in found:
        if keys and held > room:
            break
        keys.append(key)
        room -= held
    return keys


def _condemn_packs(db: Connection, keys: Sequence[int]) -> None:
    for some in in_lists(keys):
        db.execute(delete(chunks).where(chunks.c.pack.in_(some)))
        db.execute(delete(commit_packs).where(commit_packs.c.pack.in_(some)))
        db.execute(update(packs).where(packs.c.key.in_(some)).values(state="condemned"))
