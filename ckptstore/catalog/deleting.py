"""Deletion of commits, and its undoing. Every function runs under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, update

from ckptstore.catalog import finding, queries
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.records import CommitRecord
from ckptstore.catalog.schema import commits, tags
from ckptstore.errors import StepExists, StepNotFound, StepProtected, nearest

_deletable = select(commits.c.id).where(commits.c.id.in_(queries.NAMES), queries.LIVE)
_held = _deletable.join(tags).add_columns(tags.c.name)
_deleted = update(commits).where(commits.c.id.in_(queries.NAMES)).values(deleted=Clock())


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
            raise finding.not_live(commit)
        if commit.id in held:
            tag = held[commit.id]
            message = f"the tag {tag!r} holds step {commit.step} of run {commit.run!r}: remove or move the tag first"
            raise StepProtected(message)
