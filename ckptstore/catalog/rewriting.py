"""Letting commits need other packs than they were made with. Every function runs under the store's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Column, Connection, delete, insert, select, tuple_, update

from ckptstore.catalog import making, sessions
from ckptstore.catalog.queries import in_lists
from ckptstore.catalog.records import Rewrite
from ckptstore.catalog.schema import chunks, commit_packs, commits, lost_chunks, packs
from ckptstore.errors import SessionFenced

KeyByName = Mapping[str, int]


def rewrite(db: Connection, session: str, new: Rewrite) -> None:
    """Bring the new packs in, let the commits of `new.needs` need them instead, and end the session."""
    sessions.check_open(db, session)
    own = making.own_packs(db, session, new.packs)
    others = {pack for needs in new.needs.values() for pack in needs if pack not in own}
    keys = own | making.live_packs(db, sorted(others))
    old = _keys(db, packs.c.name, packs.c.key, new.instead_of)
    users = _keys(db, commits.c.id, commits.c.key, list(new.needs))
    if new.damaged:
        _retire(db, list(old.values()), users)
    else:
        users = _needing(db, users, list(old.values()))
    making.make_live(db, own, new.packs)
    _replace_edges(db, new, keys, list(old.values()), users)
    _note_lost(db, new.lost, users)
    sessions.end_session(db, session)


def _keys(db: Connection, name: Column[str], key: Column[int], names: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in in_lists(names):
        found.update(db.execute(select(name, key).where(name.in_(some))).all())
    return found


def _needing(db: Connection, users: KeyByName, old: Sequence[int]) -> dict[str, int]:
    """Those of the commits that need any of these packs; what the others needed of them was moved meanwhile."""
    found: set[int] = set()
    for some in in_lists(old):
        found.update(db.execute(select(commit_packs.c.commit).where(commit_packs.c.pack.in_(some))).scalars())
    return {commit: key for commit, key in users.items() if key in found}


def _retire(db: Connection, old: Sequence[int], users: KeyByName) -> None:
    """Nothing is found in these packs any more."""
    for some in in_lists(old):
        of_old = select(commits.c.id).join(commit_packs).where(commit_packs.c.pack.in_(some))
        if unlisted := set(db.execute(of_old).scalars()) - users.keys():
            raise SessionFenced(f"the commit {min(unlisted)} was made meanwhile with a damaged pack: repair again")
        db.execute(delete(chunks).where(chunks.c.pack.in_(some)))
        db.execute(update(packs).where(packs.c.key.in_(some), packs.c.state == "live").values(state="damaged"))


def _replace_edges(db: Connection, new: Rewrite, keys: KeyByName, old: Sequence[int], users: KeyByName) -> None:
    for some in in_lists(list(users.values())):
        for packs_of_old in in_lists(old):
            dropped = commit_packs.c.commit.in_(some) & commit_packs.c.pack.in_(packs_of_old)
            db.execute(delete(commit_packs).where(dropped))
    added = Counter(
        {
            (users[commit], keys[pack]): size
            for commit, needs in new.needs.items()
            if commit in users
            for pack, size in needs.items()
        }
    )
    edge = tuple_(commit_packs.c.commit, commit_packs.c.pack)
    for edges in in_lists(list(added)):
        there = db.execute(select(commit_packs).where(edge.in_(edges))).all()
        added.update({(row.commit, row.pack): row.bytes for row in there})
        db.execute(delete(commit_packs).where(edge.in_(edges)))
    if added:
        rows = [{"commit": commit, "pack": pack, "bytes": size} for (commit, pack), size in added.items()]
        db.execute(insert(commit_packs), rows)


def _note_lost(db: Connection, lost: Mapping[str, Sequence[bytes]], users: KeyByName) -> None:
    for commit, digests in lost.items():
        if commit in users:
            known = select(lost_chunks.c.digest).where(lost_chunks.c.commit == users[commit])
            fresh = set(digests) - set(db.execute(known).scalars())
            if fresh:
                rows = [{"digest": digest, "commit": users[commit]} for digest in sorted(fresh)]
                db.execute(insert(lost_chunks), rows)
