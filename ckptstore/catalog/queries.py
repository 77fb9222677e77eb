"""Reading: what exists, in records. Nothing here writes.

Here as elsewhere, what every commit, read and gc asks is put into words once: SQLAlchemy takes longer for that than for
asking it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import BindParameter, Connection, bindparam, func, select

from ckptstore.batching import batched
from ckptstore.catalog.places import DEEPEST, Places
from ckptstore.catalog.records import (
    CatalogStats,
    ChunkLocation,
    PackRecord,
    RunRecord,
    TagRecord,
)
from ckptstore.catalog.schema import chunks, commit_packs, commits, manifests, packs, runs, tags
from ckptstore.errors import RunNotFound, StepNotFound, nearest

_Item = TypeVar("_Item")
_IN_LIST = 4096  # below SQLite's and Postgres' limits of parameters

LIVE = commits.c.deleted.is_(None)
NAMES: BindParameter[Sequence[str]] = bindparam("names", expanding=True)
"""One of the lists that `in_lists` gives."""
_frame = (chunks.c.offset, chunks.c.length, chunks.c.raw_length, chunks.c.codec, chunks.c.base)
LOCATIONS = select(chunks.c.digest, packs.c.name, *_frame).join(packs, packs.c.key == chunks.c.pack)
# Not joined: for many digests Postgres would then read all packs, and SQLite all live ones.
_live_pack = select(packs.c.name).where(packs.c.key == chunks.c.pack, packs.c.state == "live").scalar_subquery()
_digests: BindParameter[Sequence[bytes]] = bindparam("digests", expanding=True)
_placed = select(chunks.c.digest, chunks.c.pack, _live_pack, *_frame).where(chunks.c.digest.in_(_digests))
_run_key = select(runs.c.key).where(runs.c.name == bindparam("run"))
_steps = select(commits.c.step).where(commits.c.run == _run_key.scalar_subquery(), LIVE).order_by(commits.c.step)
_manifest = select(manifests.c.data).join(commits).where(commits.c.id == bindparam("id"))
_deleted_at = (
    select(commits.c.document, manifests.c.data)
    .join(manifests)
    .where(commits.c.run == _run_key.scalar_subquery(), commits.c.step == bindparam("step"), ~LIVE)
    .order_by(commits.c.key.desc())
    .limit(1)
)
_of_pack = commit_packs.alias()
_needed = _of_pack.c.pack == packs.c.key
_all_packs = (
    select(
        packs.c.name,
        packs.c.state,
        packs.c.size,
        packs.c.created,
        select(func.count()).where(_needed).scalar_subquery(),
        select(func.coalesce(func.max(_of_pack.c.bytes), 0)).where(_needed).scalar_subquery(),
        packs.c.verified,
    )
    .where(packs.c.state != "deleted")
    .order_by(packs.c.key)
)
_of_commit = commit_packs.join(commits, commits.c.key == commit_packs.c.commit)
_packs_of_commit = _all_packs.select_from(packs.join(_of_commit)).where(commits.c.id == bindparam("id"))
_in_pack = LOCATIONS.where(packs.c.name == bindparam("pack")).order_by(chunks.c.offset)


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
    key = known_run(db, run)
    if key is None:
        known = db.execute(select(runs.c.name).order_by(runs.c.created).limit(1000)).scalars()
        raise RunNotFound(f"no run {run!r}; {nearest(run, known)}")
    return key


def known_run(db: Connection, run: str) -> int | None:
    """The run's row, if there is one."""
    return db.execute(_run_key, {"run": run}).scalar()


def steps(db: Connection, run: str) -> list[int]:
    """Live steps, ascending."""
    return list(db.execute(_steps, {"run": run}).scalars())


def manifest(db: Connection, commit: str) -> bytes:
    """The manifest document of a commit id."""
    data = db.execute(_manifest, {"id": commit}).scalar()
    if data is None:
        raise purged(commit)
    return bytes(data)


def deleted_document(db: Connection, run: str, step: int) -> tuple[str, bytes] | None:
    """Key and document of the last commit that was deleted at a step."""
    found = db.execute(_deleted_at, {"run": run, "step": step}).first()
    return None if found is None else (found.document, bytes(found.data))


def locate(db: Connection, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
    """Where each chunk lies, in the oldest live pack that holds it whole, or else with all that it rests on."""
    places = Places()
    wanted, known = set(digests), set[bytes]()
    for _ in range(1 + DEEPEST):
        for some in in_lists(list(wanted)):
            for digest, pack, name, *frame in db.execute(_placed, {"digests": some}).all():
                if name is not None:
                    places.add(pack, ChunkLocation(digest, name, *frame))
        known |= wanted
        wanted = places.bases(wanted) - known
        if not wanted:
            break
    return places.closure(digests)


def all_packs(db: Connection, commit: str | None) -> list[PackRecord]:
    """Packs that are not deleted, of the store or of one commit."""
    found = db.execute(_all_packs) if commit is None else db.execute(_packs_of_commit, {"id": commit})
    return [PackRecord(*row) for row in found]


def pack_chunks(db: Connection, pack: str) -> list[ChunkLocation]:
    """The locations recorded for one pack, in its order."""
    return [ChunkLocation(*row) for row in db.execute(_in_pack, {"pack": pack})]


def all_tags(db: Connection, run: str | None) -> list[TagRecord]:
    """Every tag, or those of a run, by run, then name."""
    columns = select(runs.c.name, tags.c.name, commits.c.id, commits.c.step, tags.c.document)
    wanted = columns.select_from(tags).join(commits).join(runs, runs.c.key == tags.c.run)
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
