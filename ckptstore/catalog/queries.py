"""Reading: what exists, in records. Nothing here writes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, ScalarSelect, Text, cast, func, select

from ckptstore.batching import batched
from ckptstore.catalog.places import Places
from ckptstore.catalog.records import (
    LATEST,
    CatalogStats,
    ChunkLocation,
    CommitRecord,
    PackRecord,
    RunRecord,
    TagRecord,
)
from ckptstore.catalog.schema import chunks, commit_packs, commits, manifests, packs, runs, tags
from ckptstore.errors import CatalogError, CkptStoreError, RunNotFound, StepNotFound, TagNotFound, nearest

_Item = TypeVar("_Item")
_IN_LIST = 4096  # below SQLite's and Postgres' limits of parameters

LIVE = commits.c.deleted.is_(None)
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
_frame = (chunks.c.offset, chunks.c.length, chunks.c.raw_length, chunks.c.codec, chunks.c.base)
LOCATIONS = select(chunks.c.digest, packs.c.name, *_frame).join(packs, packs.c.key == chunks.c.pack)
# Not joined: for many digests Postgres would then read all packs, and SQLite all live ones.
_live_pack = select(packs.c.name).where(packs.c.key == chunks.c.pack, packs.c.state == "live").scalar_subquery()
_placed = select(chunks.c.digest, chunks.c.pack, _live_pack, *_frame)


def in_lists(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """The items in runs short enough for an IN list."""
    return batched(items, _IN_LIST)


def all_runs(db: Connection) -> list[RunRecord]:
    """Every run, by name."""
    counted = (
        select(commits.c.run, func.count().label("commits"), func.max(commits.c.step).label("latest"))
        .where(LIVE)
        .group_by(commits.c.run)
        .subquery()
    )
    found = db.execute(
        select(
            runs.c.name, runs.c.created, func.coalesce(counted.c.commits, 0), counted.c.latest, runs.c.forked_from
        ).outerjoin(counted, counted.c.run == runs.c.key)
    )
    return sorted((RunRecord(*row) for row in found), key=lambda run: run.name)  # Postgres orders by its locale


def run_key(db: Connection, run: str) -> int:
    """The run's row. Raises RunNotFound."""
    key = db.execute(select(runs.c.key).where(runs.c.name == run)).scalar()
    if key is None:
        known = db.execute(select(runs.c.name).order_by(runs.c.created).limit(1000)).scalars()
        raise RunNotFound(f"no run {run!r}; {nearest(run, known)}")
    return int(key)


def steps(db: Connection, run: str) -> list[int]:
    """Live steps, ascending."""
    key = select(runs.c.key).where(runs.c.name == run).scalar_subquery()
    return list(db.execute(select(commits.c.step).where(commits.c.run == key, LIVE).order_by(commits.c.step)).scalars())


def newest(db: Connection, run: str, most: int) -> CommitRecord | None:
    """The live commit at the highest step up to `most`."""
    highest = _highest(_others.c.step <= most)
    return next(iter(_records(db, runs.c.name == run, commits.c.step == highest, LIVE)), None)


def _highest(*wanted: ColumnElement[bool]) -> ScalarSelect[int]:
    """Of a run's live steps."""
    live = _others.c.run == runs.c.key, _others.c.deleted.is_(None)
    return select(func.max(_others.c.step)).where(*live, *wanted).scalar_subquery()


def all_commits(db: Connection, run: str | None, *, deleted: bool) -> list[CommitRecord]:
    """Commits of one or all runs, by run, then step."""
    wanted = [] if run is None else [commits.c.run == run_key(db, run)]
    if not deleted:
        wanted.append(LIVE)
    found = _records(db, *wanted)
    return sorted(found, key=lambda commit: (commit.run, commit.step, commit.created))


def find(db: Connection, run: str, step: int | str) -> CommitRecord:
    """The live commit at a step, a tag or "latest"."""
    found = _records(db, runs.c.name == run, *_named(step))
    if not found:
        raise _not_found(db, run, run_key(db, run), step)
    return found[0]


def _named(step: int | str) -> Iterator[ColumnElement[bool]]:
    """What the commit of a run that is named so is alone in."""
    if isinstance(step, str) and step != LATEST:
        tagged = select(tags.c.commit).where(tags.c.run == runs.c.key, tags.c.name == step)
        yield commits.c.key == tagged.scalar_subquery()
        return
    yield commits.c.step == (_highest() if step == LATEST else step)
    yield LIVE


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
    return next(iter(_records(db, commits.c.run == key, commits.c.step == step, LIVE)), None)


def by_id(db: Connection, commit: str) -> CommitRecord | None:
    """A commit, live or deleted."""
    return next(iter(_records(db, commits.c.id == commit)), None)


def manifest(db: Connection, commit: str) -> bytes:
    """The manifest document of a commit id."""
    data = db.execute(select(manifests.c.data).join(commits).where(commits.c.id == commit)).scalar()
    if data is None:
        raise purged(commit)
    return bytes(data)


def locate(db: Connection, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
    """Where each chunk lies, in the oldest live pack that holds it whole, or else with all that it rests on."""
    places = Places()
    wanted, known = set(digests), set[bytes]()
    while wanted:
        for some in in_lists(list(wanted)):
            for digest, pack, name, *frame in db.execute(_placed.where(chunks.c.digest.in_(some))).all():
                if name is not None:
                    places.add(pack, ChunkLocation(digest, name, *frame))
        known |= wanted
        wanted = places.bases(wanted) - known
    return places.closure(digests)


def all_packs(db: Connection, commit: str | None) -> list[PackRecord]:
    """Packs that are not deleted, of the store or of one commit."""
    users = commit_packs.alias()
    of_pack = users.c.pack == packs.c.key
    needed_by = select(func.count()).where(of_pack).scalar_subquery()
    needed_bytes = select(func.coalesce(func.max(users.c.bytes), 0)).where(of_pack).scalar_subquery()
    numbers = packs.c.size, packs.c.created, needed_by, needed_bytes, packs.c.verified
    wanted = select(packs.c.name, packs.c.state, *numbers)
    if commit is not None:
        wanted = wanted.select_from(packs).join(commit_packs).join(commits, commits.c.key == commit_packs.c.commit)
        wanted = wanted.where(commits.c.id == commit)
    found = db.execute(wanted.where(packs.c.state != "deleted").order_by(packs.c.key))
    return [PackRecord(*row) for row in found]


def pack_chunks(db: Connection, pack: str) -> list[ChunkLocation]:
    """The locations recorded for one pack, in its order."""
    found = db.execute(LOCATIONS.where(packs.c.name == pack).order_by(chunks.c.offset))
    return [ChunkLocation(*row) for row in found]


def all_tags(db: Connection, run: str | None) -> list[TagRecord]:
    """Every tag, or those of a run, by run, then name."""
    told = select(runs.c.name, tags.c.name, commits.c.id, commits.c.step, tags.c.document)
    wanted = told.select_from(tags).join(commits).join(runs, runs.c.key == tags.c.run)
    of_run = [] if run is None else [runs.c.name == run]
    return [TagRecord(*row) for row in sorted(db.execute(wanted.where(*of_run)))]


def stats(db: Connection) -> CatalogStats:
    """Counts of everything."""
    live, deleted, logical = db.execute(
        select(
            func.count().filter(LIVE),
            func.count().filter(~LIVE),
            func.coalesce(func.sum(commits.c.logical_bytes).filter(LIVE), 0),
        ).select_from(commits)
    ).one()
    wanted = select(packs.c.state, func.count(), func.sum(packs.c.size), func.sum(packs.c.chunks))
    found = db.execute(wanted.where(packs.c.state != "deleted").group_by(packs.c.state)).all()
    stored, held = next(((int(size), int(count)) for state, _, size, count in found if state == "live"), (0, 0))
    return CatalogStats(
        runs=db.execute(select(func.count()).select_from(runs)).scalar_one(),
        commits=live,
        deleted_commits=deleted,
        packs={row[0]: row[1] for row in found},
        stored_bytes=stored,
        logical_bytes=int(logical),
        chunks=held,
    )


def check(db: Connection) -> list[str]:
    """Commits that rely on packs which are not live."""
    wanted = select(commits.c.id, packs.c.name, packs.c.state).select_from(commit_packs)
    wanted = wanted.join(commits).join(packs, packs.c.key == commit_packs.c.pack)
    found = db.execute(wanted.where(packs.c.state != "live"))
    return [f"commit {commit} needs the pack {pack}, which is {state}" for commit, pack, state in found]


def purged(commit: str) -> StepNotFound:
    """The error for the id of a commit that is not there."""
    return StepNotFound(f"no commit {commit}: it was purged, or is of another store")


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


def _records(db: Connection, *wanted: ColumnElement[bool]) -> list[CommitRecord]:
    found = db.execute(_commits.where(*wanted)).all()
    if not found:
        return []
    names = _tags_of(db, [row.key for row in found] if len(found) < 2 else None)
    return [_record(row, names.get(row.key, ())) for row in found]


def _tags_of(db: Connection, keys: Iterable[int] | None) -> dict[int, tuple[str, ...]]:
    wanted = select(tags.c.commit, tags.c.name)
    if keys is not None:
        wanted = wanted.where(tags.c.commit.in_(keys))
    names: dict[int, list[str]] = defaultdict(list)
    for commit, name in db.execute(wanted):
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
        told = f"the metadata of {row.run_name}@{row.step} is no JSON"
        raise CatalogError(f"{told}: bring the catalog back from a copy, or rebuild it") from None
