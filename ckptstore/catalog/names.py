"""Tags, deletion and its undoing. Every function runs under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from ckptstore.catalog import queries
from ckptstore.catalog.base import CommitRecord
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.schema import commits, tags
from ckptstore.errors import StepExists, StepNotFound, StepProtected, nearest


def tag(db: Connection, run: str, name: str, step: int | None) -> None:
    """Point a tag at a live step, or remove it."""
    key = queries.run_key(db, run)
    if step is not None:
        queries.at_step(db, run, key, step)
    removed = db.execute(delete(tags).where(tags.c.run == key, tags.c.name == name)).rowcount
    if step is None and not removed:
        raise queries.tag_not_found(db, run, key, name)
    if step is not None:
        commit = select(commits.c.key).where(commits.c.run == key, commits.c.step == step, queries.LIVE)
        db.execute(insert(tags).values(run=key, name=name, commit=commit.scalar_subquery()))


def delete_steps(db: Connection, run: str, steps: Sequence[int]) -> None:
    """Mark live commits deleted, all or none."""
    key = queries.run_key(db, run)
    for some in queries.batched(steps):
        _check_deletable(db, run, key, some)
        gone = update(commits).where(commits.c.run == key, commits.c.step.in_(some), queries.LIVE)
        db.execute(gone.values(deleted=Clock()))


def restore(db: Connection, run: str, step: int) -> CommitRecord:
    """Take back the last deletion of a step."""
    key = queries.run_key(db, run)
    deleted = select(commits.c.step).where(commits.c.run == key, ~queries.LIVE)
    last = deleted.with_only_columns(commits.c.key).where(commits.c.step == step)
    last_key = db.execute(last.order_by(commits.c.deleted.desc(), commits.c.key.desc()).limit(1)).scalar()
    if last_key is None:
        near = nearest(step, db.execute(deleted.order_by(commits.c.step)).scalars())
        raise StepNotFound(f"run {run!r} has no deleted step {step} that could be restored; {near}")
    if queries.live_at(db, key, step) is not None:
        raise StepExists(f"step {step} of run {run!r} was made anew: delete that one first")
    db.execute(update(commits).where(commits.c.key == last_key).values(deleted=None))
    return queries.at_step(db, run, key, step)


def _check_deletable(db: Connection, run: str, key: int, steps: Sequence[int]) -> None:
    here = select(commits.c.step).where(commits.c.run == key, commits.c.step.in_(steps), queries.LIVE)
    found = set(db.execute(here).scalars())
    for step in steps:
        if step not in found:
            raise queries.step_not_found(db, run, key, step)
    held = db.execute(here.join(tags).add_columns(tags.c.name).order_by(commits.c.step)).first()
    if held is not None:
        step, name = held
        raise StepProtected(f"the tag {name!r} holds step {step} of run {run!r}: remove or move the tag first")
