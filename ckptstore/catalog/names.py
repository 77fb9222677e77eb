"""Tags, deletion and its undoing. Every function runs under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from ckptstore.catalog import finding, queries
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.records import CommitRecord, TagRecord
from ckptstore.catalog.schema import commits, loose_documents, stores, tags
from ckptstore.catalog.sessions import end_session
from ckptstore.errors import SessionFenced, StepExists, StepNotFound, StepProtected, nearest

_reserved = delete(loose_documents).where(
    loose_documents.c.document == bindparam("reserved"), loose_documents.c.session == bindparam("by")
)
_live = select(commits.c.run, commits.c.key).where(commits.c.id == bindparam("commit"), queries.LIVE)
_this_tag = tags.c.run == bindparam("of_run"), tags.c.name == bindparam("called")
_document = select(tags.c.document).where(*_this_tag)
_unnamed = delete(tags).where(*_this_tag)
_loosened = insert(loose_documents).values(session=None)
_deletable = select(commits.c.id).where(commits.c.id.in_(queries.NAMES), queries.LIVE)
_held = _deletable.join(tags).add_columns(tags.c.name)
_deleted = update(commits).where(commits.c.id.in_(queries.NAMES)).values(deleted=Clock())


def owner(db: Connection) -> str | None:
    """Whose catalog it is."""
    found: str | None = db.execute(select(stores.c.id)).scalar()
    return found


def bind(db: Connection, store: str) -> None:
    """Make it the catalog of a store, if it is of none yet."""
    if owner(db) is None:
        db.execute(insert(stores).values(id=store))


def tag(
    db: Connection, session: str, name: str, commit: CommitRecord, document: str, instead_of: str | None
) -> str | None:
    """Point a tag at a live commit and end the session; the document that told where it pointed before, which gc may
    take.
    """
    if not db.execute(_reserved, {"reserved": document, "by": session}).rowcount:
        raise SessionFenced(f"{document} is not reserved by the session {session}, which gc took over: tag again")
    found = db.execute(_live, {"commit": commit.id}).one_or_none()
    if found is None:
        raise _not_live(commit)
    older = _remove(db, found.run, name)
    if instead_of not in (None, older):
        raise SessionFenced(f"the tag {name!r} of run {commit.run!r} was moved meanwhile: tag again")
    db.execute(insert(tags), {"run": found.run, "name": name, "commit": found.key, "document": document})
    end_session(db, session)
    return older


def enter_tags(db: Connection, told: Sequence[TagRecord]) -> None:
    """Point tags at live commits, whose documents are in storage already."""
    for record in told:
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


def delete_commits(db: Connection, gone: Sequence[CommitRecord]) -> None:
    """Mark live commits deleted, all or none."""
    for some in queries.in_lists(gone):
        _check_deletable(db, some)
        db.execute(_deleted, {"names": [commit.id for commit in some]})


def restore(db: Connection, run: str, step: int) -> CommitRecord:
    """Take back the last deletion of a step."""
    key = queries.run_key(db, run)
    deleted = select(commits.c.step).where(commits.c.run == key, ~queries.LIVE)
    last = deleted.with_only_columns(commits.c.key).where(commits.c.step == step)
    last_key = db.execute(last.order_by(commits.c.key.desc()).limit(1)).scalar()
    if last_key is None:
        near = nearest(step, db.execute(deleted.order_by(commits.c.step)).scalars())
        there = "it is there" if finding.live_at(db, key, step) is not None else near
        raise StepNotFound(f"run {run!r} has no deleted step {step} that could be restored; {there}")
    if finding.live_at(db, key, step) is not None:
        raise StepExists(f"step {step} of run {run!r} was made anew: delete that one first")
    db.execute(update(commits).where(commits.c.key == last_key).values(deleted=None))
    return finding.at_step(db, run, key, step)


def _check_deletable(db: Connection, wanted: Sequence[CommitRecord]) -> None:
    these = {"names": [commit.id for commit in wanted]}
    live = set(db.execute(_deletable, these).scalars())
    held = {row.id: row.name for row in db.execute(_held, these)}
    for commit in wanted:
        if commit.id not in live:
            raise _not_live(commit)
        if commit.id in held:
            tag = held[commit.id]
            message = f"the tag {tag!r} holds step {commit.step} of run {commit.run!r}: remove or move the tag first"
            raise StepProtected(message)


def _not_live(commit: CommitRecord) -> StepNotFound:
    return StepNotFound(f"step {commit.step} of run {commit.run!r} is another now, or was deleted: look it up again")
