"""Tags. Every function runs under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select

from ckptstore.catalog import finding, queries
from ckptstore.catalog.records import CommitRecord, TagRecord
from ckptstore.catalog.schema import commits, loose_documents, tags
from ckptstore.catalog.sessions import end_session
from ckptstore.errors import SessionFenced

_reserved = delete(loose_documents).where(
    loose_documents.c.document == bindparam("reserved"), loose_documents.c.session == bindparam("by")
)
_live = select(commits.c.run, commits.c.key).where(commits.c.id == bindparam("commit"), queries.LIVE)
_this_tag = tags.c.run == bindparam("of_run"), tags.c.name == bindparam("called")
_document = select(tags.c.document).where(*_this_tag)
_unnamed = delete(tags).where(*_this_tag)
_loosened = insert(loose_documents).values(session=None)


def tag(
    db: Connection, session: str, name: str, commit: CommitRecord, document: str, instead_of: str | None
) -> str | None:
    """Point a tag at a live commit and end the session; the document of where it pointed before, which gc may
    take.
    """
    if not db.execute(_reserved, {"reserved": document, "by": session}).rowcount:
        raise SessionFenced(f"{document} is not reserved by the session {session}, which gc took over: tag again")
    found = db.execute(_live, {"commit": commit.id}).one_or_none()
    if found is None:
        raise finding.not_live(commit)
    older = _remove(db, found.run, name)
    if instead_of not in (None, older):
        raise SessionFenced(f"the tag {name!r} of run {commit.run!r} was moved meanwhile: tag again")
    db.execute(insert(tags), {"run": found.run, "name": name, "commit": found.key, "document": document})
    end_session(db, session)
    return older


def enter_tags(db: Connection, records: Sequence[TagRecord]) -> None:
    """Point tags at live commits, whose documents are in storage already."""
    for record in records:
        found = db.execute(_live, {"commit": record.commit}).one()
        db.execute(_unnamed, {"of_run": found.run, "called": record.name})
        row = {"run": found.run, "name": record.name, "commit": found.key, "document": record.document}
        db.execute(insert(tags), row)


def untag(db: Connection, run: str, name: str) -> str:
    """Remove a tag; its document, which gc may take."""
    key = queries.run_key(db, run)
    document = _remove(db, key, name)
    if document is None:
        raise finding.tag_not_found(db, run, key, name)
    return document


def _remove(db: Connection, run: int, name: str) -> str | None:
    this = {"of_run": run, "called": name}
    document: str | None = db.execute(_document, this).scalar()
    db.execute(_unnamed, this)
    if document:
        db.execute(_loosened, {"document": document})
    return document
