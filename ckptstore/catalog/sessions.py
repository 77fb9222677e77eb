"""A writer's session: its lease, what it pins and reserves, and the one transaction in which its commit comes to be.

Every function runs under the store's lock.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, Select, bindparam, delete, exists, func, insert, literal, null, select, update

from ckptstore.catalog import queries
from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.records import ChunkLocation, CommitRecord, LeftOutDocument, NewCommit, NewPack
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    left_out_documents,
    loose_documents,
    lost_chunks,
    manifests,
    packs,
    pins,
    runs,
    sessions,
)
from ckptstore.errors import SessionFenced, holds_another

_ENTERING_SECONDS = 60.0


def open_session(db: Connection, lease_seconds: float) -> str:
    """A new session's id."""
    name = uuid.uuid4().hex
    db.execute(insert(sessions).values(id=name, expires=Clock() + lease_seconds))
    return name


def extend_session(db: Connection, session: str, lease_seconds: float) -> None:
    """Move the lease's end."""
    later = update(sessions).where(sessions.c.id == session).values(expires=Clock() + lease_seconds)
    if db.execute(later).rowcount == 0:
        raise _fenced(session)


def end_session(db: Connection, session: str) -> None:
    """The row goes, and by the foreign keys its pins; what it reserved belongs to nobody."""
    db.execute(delete(sessions).where(sessions.c.id == session))


def fence_expired(db: Connection) -> int:
    """End every session whose lease ran out."""
    return db.execute(delete(sessions).where(sessions.c.expires < Clock())).rowcount


def pin(db: Connection, session: str, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
    """Locate, and pin the packs found."""
    check_open(db, session)
    found = queries.locate(db, digests)
    for names in queries.in_lists(sorted({location.pack for location in found.values()})):
        pinned = exists().where(pins.c.session == session, pins.c.pack == packs.c.key)
        fresh = select(literal(session), packs.c.key).where(packs.c.name.in_(names), ~pinned)
        db.execute(insert(pins).from_select(["session", "pack"], fresh))
    return found


def reserve(db: Connection, session: str, names: Sequence[str], document: str | None) -> None:
    """Record packs as pending, and a document as not yet any commit's."""
    check_open(db, session)
    if names:
        row = insert(packs).values(state="pending", session=session, size=0, chunks=0, created=Clock())
        db.execute(row.values(name=bindparam("pack_name")), [{"pack_name": name} for name in names])
    if document is not None:
        db.execute(insert(loose_documents).values(document=document, session=session))


def commit(db: Connection, session: str, new: NewCommit) -> CommitRecord:
    """Make a commit exist and end the session; the same content at the same step is success again."""
    made = _commit(db, session, new)
    if made.id == new.id:
        _supersede(db, new.run, new.step)
    return made


def _supersede(db: Connection, run: str, step: int) -> None:
    """What a rebuild left out of a step goes, once that is made anew."""
    here = left_out_documents.c.run == run, left_out_documents.c.step == step
    older = select(left_out_documents.c.document, null()).where(*here)
    if db.execute(insert(loose_documents).from_select(["document", "session"], older)).rowcount:
        db.execute(delete(left_out_documents).where(*here))


def _commit(db: Connection, session: str, new: NewCommit) -> CommitRecord:
    run = _run(db, new)
    taken = queries.live_at(db, run, new.step)
    if taken is None:
        _insert(db, session, run, new)
    elif taken.content != new.content:
        raise holds_another(new.run, new.step)
    elif healing := _healing(db, new.packs):
        make_live(db, own_packs(db, session, healing), healing)
    end_session(db, session)
    return taken or queries.at_step(db, new.run, run, new.step)


def enter(db: Connection, new: NewCommit) -> None:
    """Open a session, reserve and commit, so that nothing stays reserved that nobody could reserve again."""
    session = open_session(db, _ENTERING_SECONDS)
    reserve(db, session, [pack.name for pack in new.packs], new.document)
    _commit(db, session, new)


def leave_out(db: Connection, found: Sequence[LeftOutDocument]) -> None:
    """These, in place of what an earlier rebuild left out."""
    db.execute(delete(left_out_documents))
    if found:
        rows = [{"document": one.document, "run": one.run, "step": one.step} for one in found]
        db.execute(insert(left_out_documents), rows)


def _insert(db: Connection, session: str, run: int, new: NewCommit) -> None:
    check_open(db, session)
    own = own_packs(db, session, new.packs)
    needed = own | live_packs(db, [name for name in new.needs if name not in own])
    make_live(db, own, new.packs)
    key = _insert_commit(db, run, new)
    edges = [{"commit": key, "pack": pack, "bytes": new.needs.get(name, 0)} for name, pack in needed.items()]
    if edges:
        db.execute(insert(commit_packs), edges)
    db.execute(delete(loose_documents).where(loose_documents.c.document == new.document))


def check_open(db: Connection, session: str) -> None:
    """Raise SessionFenced unless the session is open."""
    if db.execute(select(sessions.c.id).where(sessions.c.id == session)).scalar() is None:
        raise _fenced(session)


def _fenced(session: str) -> SessionFenced:
    return SessionFenced(
        f"the writer's session {session} is not open any more: it ended, or its lease ran out and gc took over; "
        "commit again"
    )


def _run(db: Connection, new: NewCommit) -> int:
    found = db.execute(select(runs.c.key).where(runs.c.name == new.run)).scalar()
    if found is not None:
        return int(found)
    forked = select(queries.NAME).join(runs, runs.c.key == commits.c.run).where(commits.c.id == new.parent)
    made = insert(runs).values(name=new.run, created=Clock(), forked_from=forked.scalar_subquery())
    return int(db.execute(made.returning(runs.c.key)).scalar_one())


def own_packs(db: Connection, session: str, new: Sequence[NewPack]) -> dict[str, int]:
    """Name → row of packs that the session reserved. Raises SessionFenced when they are not its own."""
    found: dict[str, int] = {}
    for names in queries.in_lists([pack.name for pack in new]):
        wanted = select(packs.c.name, packs.c.key).where(packs.c.name.in_(names))
        ours = wanted.where(packs.c.state == "pending", packs.c.session == session)
        found.update(db.execute(ours).all())
    lost = next((pack.name for pack in new if pack.name not in found), None)
    if lost is not None:
        raise SessionFenced(f"the pack {lost} is not reserved by the session {session}: commit again")
    return found


def live_packs(db: Connection, names: Sequence[str]) -> dict[str, int]:
    """Name → row of live packs. Raises SessionFenced when gc has taken one."""
    found: dict[str, int] = {}
    for some in queries.in_lists(names):
        live = select(packs.c.name, packs.c.key).where(packs.c.name.in_(some), packs.c.state == "live")
        found.update(db.execute(live).all())
    gone = next((name for name in names if name not in found), None)
    if gone is not None:
        raise SessionFenced(f"gc has taken the pack {gone} that this commit relies on: commit again")
    return found


def make_live(db: Connection, own: dict[str, int], new: Sequence[NewPack]) -> None:
    """From now on the chunks of these packs are found; commits that had lost some of them get them back."""
    if not new:
        return
    now_live = update(packs).where(packs.c.key == bindparam("pack")).values(state="live", session=None)
    sized = now_live.values(size=bindparam("bytes"), chunks=bindparam("held"))
    db.execute(sized, [{"pack": own[p.name], "bytes": p.size, "held": len(p.chunks)} for p in new])
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
    if db.execute(select(lost_chunks.c.digest).limit(1)).first() is None:
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
    parent = select(commits.c.id).where(commits.c.id == new.parent).scalar_subquery()
    row = insert(commits).values(
        id=new.id,
        run=run,
        step=new.step,
        parent=parent,
        created=Clock() if new.created is None else new.created,
        metadata=json.dumps(dict(new.metadata)),
        content=new.content,
        document=new.document,
        leaves=new.leaves,
        logical_bytes=new.logical_bytes,
        new_bytes=new.new_bytes,
    )
    key = int(db.execute(row.returning(commits.c.key)).scalar_one())
    db.execute(insert(manifests).values(commit=key, data=new.manifest))
    return key
