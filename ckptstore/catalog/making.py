"""The one transaction in which a commit comes to be and its packs live. Every function runs under the store's lock."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, Float, Select, bindparam, delete, exists, func, insert, null, select, update

from ckptstore.catalog import finding, queries
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.records import ChunkLocation, CommitRecord, NewCommit, NewPack
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    left_out_documents,
    loose_documents,
    lost_chunks,
    manifests,
    packs,
    runs,
)
from ckptstore.catalog.sessions import check_open, end_session, open_session, reserve
from ckptstore.errors import SessionFenced, holds_another

_ENTERING_SECONDS = 60.0

_of_packs = select(packs.c.name, packs.c.key).where(packs.c.name.in_(queries.NAMES))
_own = _of_packs.where(packs.c.state == "pending", packs.c.session == bindparam("session"))
_live = _of_packs.where(packs.c.state == "live")
_make_live = (
    update(packs)
    .where(packs.c.key == bindparam("pack"))
    .values(state="live", session=None, size=bindparam("bytes"), chunks=bindparam("held"))
)

_forked = select(finding.NAME).join(runs, runs.c.key == commits.c.run).where(commits.c.id == bindparam("parent"))
_new_run = insert(runs).values(created=Clock(), forked_from=_forked.scalar_subquery()).returning(runs.c.key)
_parent = select(commits.c.id).where(commits.c.id == bindparam("continues")).scalar_subquery()
_made = func.coalesce(bindparam("at", type_=Float), Clock())
_new_commit = insert(commits).values(parent=_parent, created=_made).returning(commits.c.key)
_settled = delete(loose_documents).where(loose_documents.c.document == bindparam("of"))
_left_out = left_out_documents.c.run == bindparam("of_run"), left_out_documents.c.step == bindparam("at_step")
_loosen = insert(loose_documents).from_select(
    ["document", "session"], select(left_out_documents.c.document, null()).where(*_left_out)
)
_supersede_all = delete(left_out_documents).where(*_left_out)
_any_lost = select(lost_chunks.c.digest).limit(1)


def commit(db: Connection, session: str, new: NewCommit) -> CommitRecord:
    """Make a commit exist and end the session; the same content at the same step is success again."""
    made = _commit(db, session, new)
    if made.id == new.id:
        _supersede(db, new.run, new.step)
    return made


def _supersede(db: Connection, run: str, step: int) -> None:
    """What a rebuild left out of a step goes, once that is made anew."""
    here = {"of_run": run, "at_step": step}
    if db.execute(_loosen, here).rowcount:
        db.execute(_supersede_all, here)


def again(db: Connection, session: str, new: NewCommit) -> CommitRecord | None:
    """The commit that has the same content at the same step already, if there is one; that ends the session."""
    return _again(db, session, queries.known_run(db, new.run), new)


def _commit(db: Connection, session: str, new: NewCommit) -> CommitRecord:
    run = queries.known_run(db, new.run)
    return _again(db, session, run, new) or _make(db, session, run, new)


def _again(db: Connection, session: str, run: int | None, new: NewCommit) -> CommitRecord | None:
    taken = None if run is None else finding.live_at(db, run, new.step)
    if taken is None:
        return None
    if taken.content != new.content:
        raise holds_another(new.run, new.step)
    if healing := _healing(db, new.packs):
        make_live(db, own_packs(db, session, healing), healing)
    end_session(db, session)
    return taken


def _make(db: Connection, session: str, run: int | None, new: NewCommit) -> CommitRecord:
    if run is None:
        run = int(db.execute(_new_run, {"name": new.run, "parent": new.parent}).scalar_one())
    _insert(db, session, run, new)
    end_session(db, session)
    return finding.at_step(db, new.run, run, new.step)


def enter(db: Connection, new: NewCommit) -> None:
    """Open a session, reserve and commit, so that nothing stays reserved that nobody could reserve again."""
    session = open_session(db, _ENTERING_SECONDS)
    reserve(db, session, [pack.name for pack in new.packs], new.document)
    _commit(db, session, new)


def _insert(db: Connection, session: str, run: int, new: NewCommit) -> None:
    check_open(db, session)
    own = own_packs(db, session, new.packs)
    needed = own | live_packs(db, [name for name in new.needs if name not in own])
    make_live(db, own, new.packs)
    key = _insert_commit(db, run, new)
    edges = [{"commit": key, "pack": pack, "bytes": new.needs.get(name, 0)} for name, pack in needed.items()]
    if edges:
        db.execute(insert(commit_packs), edges)
    db.execute(_settled, {"of": new.document})


def own_packs(db: Connection, session: str, new: Sequence[NewPack]) -> dict[str, int]:
    """Name → row of packs that the session reserved. Raises SessionFenced when they are not its own."""
    found: dict[str, int] = {}
    for names in queries.in_lists([pack.name for pack in new]):
        found.update(db.execute(_own, {"names": names, "session": session}).all())
    lost = next((pack.name for pack in new if pack.name not in found), None)
    if lost is not None:
        raise SessionFenced(f"the pack {lost} is not reserved by the session {session}: commit again")
    return found


def live_packs(db: Connection, names: Sequence[str]) -> dict[str, int]:
    """Name → row of live packs. Raises SessionFenced when gc has taken one."""
    found: dict[str, int] = {}
    for some in queries.in_lists(names):
        found.update(db.execute(_live, {"names": some}).all())
    gone = next((name for name in names if name not in found), None)
    if gone is not None:
        raise SessionFenced(f"gc has taken the pack {gone} that this commit relies on: commit again")
    return found


def make_live(db: Connection, own: dict[str, int], new: Sequence[NewPack]) -> None:
    """From now on the chunks of these packs are found; commits that had lost some of them get them back."""
    if not new:
        return
    db.execute(_make_live, [{"pack": own[p.name], "bytes": p.size, "held": len(p.chunks)} for p in new])
    rows = [_chunk_row(chunk, own[pack.name]) for pack in new for chunk in pack.chunks]
    if rows:
        db.execute(insert(chunks), rows)
        _heal(db, list(own.values()))


def _healing(db: Connection, new: Sequence[NewPack]) -> list[NewPack]:
    """Those of the packs that hold what commits have lost."""
    lost = set(db.execute(select(lost_chunks.c.digest)).scalars()) if new else set()
    return [pack for pack in new if any(chunk.digest in lost and not chunk.base for chunk in pack.chunks)]


def _heal(db: Connection, fresh: Sequence[int]) -> None:
    """With whole chunks only: a commit that lost one may not have what another encoding of it rests on."""
    if db.execute(_any_lost).first() is None:
        return
    for some in queries.in_lists(fresh):
        whole = chunks.c.pack.in_(some) & (chunks.c.base == b"")
        back = select(lost_chunks.c.commit, chunks.c.pack, func.sum(chunks.c.length))
        back = back.join(chunks, chunks.c.digest == lost_chunks.c.digest).where(whole)
        edges = back.group_by(lost_chunks.c.commit, chunks.c.pack)
        db.execute(insert(commit_packs).from_select(["commit", "pack", "bytes"], edges))
        found = select(chunks.c.digest).where(whole)
        _forget_resting(db, found)
        db.execute(delete(lost_chunks).where(lost_chunks.c.digest.in_(found)))


def _forget_resting(db: Connection, found: Select[tuple[bytes]]) -> None:
    """What rests on chunks that are found, in packs that the same commits need, is not lost any more either."""
    base = lost_chunks.alias()
    frame = exists().where(chunks.c.digest == lost_chunks.c.digest, chunks.c.base == base.c.digest)
    needed = frame.where(commit_packs.c.pack == chunks.c.pack, commit_packs.c.commit == lost_chunks.c.commit)
    was_lost = needed.where(base.c.commit == lost_chunks.c.commit, base.c.digest.in_(found))
    db.execute(delete(lost_chunks).where(was_lost))


def _chunk_row(chunk: ChunkLocation, pack: int) -> dict[str, object]:
    return {
        "digest": chunk.digest,
        "pack": pack,
        "offset": chunk.offset,
        "length": chunk.length,
        "raw_length": chunk.raw_length,
        "codec": chunk.codec,
        "base": chunk.base,
    }


def _insert_commit(db: Connection, run: int, new: NewCommit) -> int:
    row = {
        "id": new.id,
        "run": run,
        "step": new.step,
        "metadata": json.dumps(dict(new.metadata)),
        "content": new.content,
        "document": new.document,
        "leaves": new.leaves,
        "logical_bytes": new.logical_bytes,
        "new_bytes": new.new_bytes,
    }
    key: int = db.execute(_new_commit, row | {"continues": new.parent, "at": new.created}).scalar_one()
    db.execute(insert(manifests), {"commit": key, "data": new.manifest})
    return key
