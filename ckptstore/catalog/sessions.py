"""A writer's session: its lease, and what it pins and reserves. Every function runs under the store's lock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, String, bindparam, delete, exists, insert, select, update

from ckptstore.catalog import queries
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.records import ChunkLocation
from ckptstore.catalog.schema import loose_documents, packs, pins, sessions
from ckptstore.errors import SessionFenced

EXPIRED = sessions.c.expires < Clock()
"""Of a session: whether its lease ran out."""

_later = Clock() + bindparam("lease")
_open = insert(sessions).values(id=bindparam("session"), expires=_later)
_extend = update(sessions).where(sessions.c.id == bindparam("session")).values(expires=_later)
_end = delete(sessions).where(sessions.c.id == bindparam("session"))
_fence = delete(sessions).where(EXPIRED)
_is_open = select(sessions.c.id).where(sessions.c.id == bindparam("session"))

_pinned = exists().where(pins.c.session == bindparam("by"), pins.c.pack == packs.c.key)
_unpinned = select(bindparam("by", type_=String), packs.c.key).where(packs.c.name.in_(queries.NAMES), ~_pinned)
_pin = insert(pins).from_select(["session", "pack"], _unpinned)
_reserve = insert(packs).values(
    name=bindparam("pack"), state="pending", session=bindparam("by"), size=0, chunks=0, created=Clock()
)


def open_session(db: Connection, lease_seconds: float) -> str:
    """A new session's id."""
    name = uuid.uuid4().hex
    db.execute(_open, {"session": name, "lease": lease_seconds})
    return name


def extend_session(db: Connection, session: str, lease_seconds: float) -> None:
    """Move the lease's end."""
    if db.execute(_extend, {"session": session, "lease": lease_seconds}).rowcount == 0:
        raise _fenced(session)


def end_session(db: Connection, session: str) -> None:
    """The row goes, and by the foreign keys its pins; what it reserved belongs to nobody."""
    db.execute(_end, {"session": session})


def fence_expired(db: Connection) -> int:
    """End every session whose lease ran out."""
    return db.execute(_fence).rowcount


def pin(db: Connection, session: str, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
    """Locate, and pin the packs found."""
    check_open(db, session)
    found = queries.locate(db, digests)
    for names in queries.in_lists(sorted({location.pack for location in found.values()})):
        db.execute(_pin, {"by": session, "names": names})
    return found


def reserve(db: Connection, session: str, names: Sequence[str], document: str | None) -> None:
    """Record packs as pending, and a document as not yet any commit's."""
    check_open(db, session)
    if names:
        db.execute(_reserve, [{"pack": name, "by": session} for name in names])
    if document is not None:
        db.execute(insert(loose_documents), {"document": document, "session": session})


def check_open(db: Connection, session: str) -> None:
    """Raise SessionFenced unless the session is open."""
    if db.execute(_is_open, {"session": session}).scalar() is None:
        raise _fenced(session)


def _fenced(session: str) -> SessionFenced:
    return SessionFenced(
        f"the writer's session {session} is not open any more: it ended, or its lease ran out and gc took over; "
        "commit again"
    )
