"""Commits, found by step, tag or id, in records. Nothing here writes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, Select, Text, bindparam, cast, func, select

from ckptstore.catalog.queries import LIVE, run_key
from ckptstore.catalog.records import LATEST, CommitRecord
from ckptstore.catalog.schema import commits, runs, tags
from ckptstore.errors import CatalogError, CkptStoreError, StepNotFound, TagNotFound, nearest

NAME = runs.c.name + "@" + cast(commits.c.step, Text)

_parents, _parent_runs = commits.alias(), runs.alias()
_parent_ref = (_parent_runs.c.name + "@" + cast(_parents.c.step, Text)).label("parent_ref")
_commits = (
    select(commits, runs.c.name.label("run_name"), _parent_ref)
    .join(runs, runs.c.key == commits.c.run)
    .outerjoin(_parents, _parents.c.id == commits.c.parent)
    .outerjoin(_parent_runs, _parent_runs.c.key == _parents.c.run)
)
_others = commits.alias()


def _highest(*wanted: ColumnElement[bool]) -> ScalarSelect[int]:
    """Of a run's live steps."""
    live = _others.c.run == runs.c.key, _others.c.deleted.is_(None)
    return select(func.max(_others.c.step)).where(*live, *wanted).scalar_subquery()


_of_run = _commits.where(runs.c.name == bindparam("run"))
_newest = _of_run.where(commits.c.step == _highest(_others.c.step <= bindparam("most")), LIVE)
_latest = _of_run.where(commits.c.step == _highest(), LIVE)
_numbered = _of_run.where(commits.c.step == bindparam("step"), LIVE)
_tag = select(tags.c.commit).where(tags.c.run == runs.c.key, tags.c.name == bindparam("tag"))
_tagged = _of_run.where(commits.c.key == _tag.scalar_subquery())
_live_at = _commits.where(commits.c.run == bindparam("key"), commits.c.step == bindparam("step"), LIVE)
_by_id = _commits.where(commits.c.id == bindparam("id"))
_tags = select(tags.c.commit, tags.c.name)
_tags_of = _tags.where(tags.c.commit == bindparam("commit"))


def newest(db: Connection, run: str, most: int) -> CommitRecord | None:
    """The live commit at the highest step up to `most`."""
    return next(iter(_records(db, _newest, {"run": run, "most": most})), None)


def all_commits(db: Connection, run: str | None, *, deleted: bool) -> list[CommitRecord]:
    """Commits of one or all runs, by run, then step."""
    wanted = [] if run is None else [commits.c.run == run_key(db, run)]
    if not deleted:
        wanted.append(LIVE)
    found = _records(db, _commits.where(*wanted), {})
    return sorted(found, key=lambda commit: (commit.run, commit.step, commit.created))


def find(db: Connection, run: str, step: int | str) -> CommitRecord:
    """The live commit at a step, a tag or "latest"."""
    if step == LATEST:
        found = _records(db, _latest, {"run": run})
    elif isinstance(step, str):
        found = _records(db, _tagged, {"run": run, "tag": step})
    else:
        found = _records(db, _numbered, {"run": run, "step": step})
    if not found:
        raise _not_found(db, run, run_key(db, run), step)
    return found[0]


def _not_found(db: Connection, run: str, key: int, step: int | str) -> CkptStoreError:
    if isinstance(step, int):
        return step_not_found(db, run, key, step)
    return (
        StepNotFound(f"run {run!r} has no commit yet: commit first, or name another run")
        if step == LATEST
        else tag_not_found(db, run, key, step)
    )


def at_step(db: Connection, run: str, key: int, step: int) -> CommitRecord:
    """The live commit at a step. Raises StepNotFound."""
    found = live_at(db, key, step)
    if found is None:
        raise step_not_found(db, run, key, step)
    return found


def live_at(db: Connection, key: int, step: int) -> CommitRecord | None:
    """The live commit at a step of the run's row, if there is one."""
    return next(iter(_records(db, _live_at, {"key": key, "step": step})), None)


def by_id(db: Connection, commit: str) -> CommitRecord | None:
    """A commit, live or deleted."""
    return next(iter(_records(db, _by_id, {"id": commit})), None)


def step_not_found(db: Connection, run: str, key: int, step: int) -> StepNotFound:
    """The error that names the live steps beside the one asked for."""
    of_run = select(commits.c.step).where(commits.c.run == key, LIVE)
    below = of_run.where(commits.c.step < step).order_by(commits.c.step.desc()).limit(2)
    above = of_run.where(commits.c.step > step).order_by(commits.c.step).limit(2)
    near = sorted([*db.execute(below).scalars(), *db.execute(above).scalars()])
    return StepNotFound(f"run {run!r} has no step {step}; {nearest(step, near)}")


def tag_not_found(db: Connection, run: str, key: int, name: str) -> TagNotFound:
    """The error that names the run's tags nearest to the one asked for, and another run's that is called so."""
    known = db.execute(select(tags.c.name).where(tags.c.run == key)).scalars()
    elsewhere = select(runs.c.name).join(tags, tags.c.run == runs.c.key).where(tags.c.name == name)
    other = db.execute(elsewhere.order_by(runs.c.created.desc()).limit(1)).scalar()
    also = "" if other is None else f"; {other}@{name} is one"
    return TagNotFound(f"run {run!r} has no tag {name!r}; {nearest(name, known)}{also}")


def _records(db: Connection, wanted: Select[Any], given: Mapping[str, object]) -> list[CommitRecord]:
    found = db.execute(wanted, given).all()
    if not found:
        return []
    names = _names(db, found[0].key if len(found) == 1 else None)
    return [_record(row, names.get(row.key, ())) for row in found]


def _names(db: Connection, key: int | None) -> dict[int, tuple[str, ...]]:
    """The tags of one commit, or of all that have some."""
    names: dict[int, list[str]] = defaultdict(list)
    for commit, name in db.execute(_tags) if key is None else db.execute(_tags_of, {"commit": key}):
        names[commit].append(name)
    return {commit: tuple(sorted(found)) for commit, found in names.items()}


def _record(row: Row[Any], names: tuple[str, ...]) -> CommitRecord:
    return CommitRecord(
        id=row.id,
        run=row.run_name,
        step=row.step,
        parent=row.parent,
        parent_ref=row.parent_ref,
        created=row.created,
        metadata=_metadata(row),
        content=bytes(row.content),
        document=row.document,
        leaves=row.leaves,
        logical_bytes=row.logical_bytes,
        new_bytes=row.new_bytes,
        deleted=row.deleted,
        tags=names,
    )


def _metadata(row: Row[Any]) -> Any:
    try:
        return json.loads(row.metadata)
    except ValueError:
        problem = f"the metadata of {row.run_name}@{row.step} is no JSON"
        raise CatalogError(f"{problem}: bring the catalog back from a copy, or rebuild it") from None


def not_live(commit: CommitRecord) -> StepNotFound:
    """The error for a commit that is not live any more."""
    return StepNotFound(f"step {commit.step} of run {commit.run!r} is another now, or was deleted: look it up again")
