"""What gc may take, and taking it. Condemning runs under the store's lock, so no commit can come in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    Select,
    Subquery,
    bindparam,
    delete,
    exists,
    insert,
    null,
    select,
    union_all,
    update,
)

from ckptstore.catalog.dialects import Clock
from ckptstore.catalog.queries import NAMES, in_lists
from ckptstore.catalog.records import Objects
from ckptstore.catalog.schema import (
    chunks,
    commit_packs,
    commits,
    gone_documents,
    loose_documents,
    lost_chunks,
    manifests,
    metadata,
    packs,
    pins,
    sessions,
)
from ckptstore.catalog.sessions import EXPIRED

DECIDING = [table.name for table in metadata.sorted_tables if table not in (manifests, chunks)]
"""The tables that say what is needed: all but the large ones."""

_COMMITS_AT_ONCE = 256
_PACKS_AT_ONCE = 1024
_CHUNKS_AT_ONCE = 1 << 16
"""Bounds for one transaction, so that a commit waits for a tenth of a second at most; one pack goes in any case."""


def _useless(overdue: BindParameter[Sequence[int]] | Select[int], fenced: Select[str] | None = None) -> Subquery:
    """Packs that nothing needs once these commits, keys all, are purged, and these sessions fenced.

    For EXISTS (SELECT *) SQLite reads rows where an index has all that it needs, and for states joined by OR it looks
    at packs twice: together they took twice as long.
    """
    needed = exists(commit_packs.c.commit).where(
        commit_packs.c.pack == packs.c.key, commit_packs.c.commit.not_in(overdue)
    )
    unowned: ColumnElement[bool] = packs.c.session.is_(None)
    pinned = exists(pins.c.pack).where(pins.c.pack == packs.c.key)
    if fenced is not None:
        unowned, pinned = unowned | packs.c.session.in_(fenced), pinned.where(pins.c.session.not_in(fenced))
    lost = exists(lost_chunks.c.commit).where(lost_chunks.c.commit.not_in(overdue))
    of_pack = select(packs.c.key, packs.c.name, packs.c.chunks)
    left_behind = of_pack.where(packs.c.state == "pending", unowned)
    done_with = of_pack.where(packs.c.state == "damaged", ~lost)
    unneeded = of_pack.where(packs.c.state == "live", ~needed, ~pinned)
    return union_all(left_behind, done_with, unneeded).subquery()


_now = select(Clock())
_ended = select(sessions.c.id).where(EXPIRED)
_overdue = commits.c.deleted <= bindparam("until")
_late = select(commits.c.key).where(_overdue).order_by(commits.c.deleted).limit(_COMMITS_AT_ONCE)
_late_keys: BindParameter[Sequence[int]] = bindparam("commits", expanding=True)
_these_commits = commits.c.key.in_(_late_keys)
_loosen = insert(loose_documents).from_select(
    ["document", "session"], select(commits.c.document, null()).where(_these_commits)
)
_purge = delete(commits).where(_these_commits)
_now_useless = _useless(_late_keys)
_of_useless = select(_now_useless.c.key, _now_useless.c.chunks)
_first_useless = _of_useless.order_by(_now_useless.c.key).limit(_PACKS_AT_ONCE)

_unowned = loose_documents.c.session.is_(None)
_unowned_documents = select(loose_documents.c.document).where(_unowned)
_left_documents = select(loose_documents.c.document).where(_unowned | loose_documents.c.session.in_(_ended))
_overdue_documents = _left_documents.union_all(select(commits.c.document).where(_overdue))
_is_condemned = packs.c.state == "condemned"
_condemned = select(packs.c.name).where(_is_condemned)
_garbage = _condemned.union_all(select(_useless(select(commits.c.key).where(_overdue), _ended).c.name))

_these_packs: BindParameter[Sequence[int]] = bindparam("packs", expanding=True)
_forget_chunks = delete(chunks).where(chunks.c.pack.in_(_these_packs))
_forget_needs = delete(commit_packs).where(commit_packs.c.pack.in_(_these_packs))
_condemn = update(packs).where(packs.c.key.in_(_these_packs)).values(state="condemned")
_settled = _unowned & loose_documents.c.document.in_(NAMES)
_note_gone = insert(gone_documents).from_select(["document"], select(loose_documents.c.document).where(_settled))
_settle_documents = delete(loose_documents).where(_settled)
_settle_packs = update(packs).where(packs.c.name.in_(NAMES), _is_condemned).values(state="deleted")


def garbage(db: Connection, grace: float) -> Objects:
    """What `condemn` would return once the sessions were fenced whose lease ran out."""
    until = {"until": _end_of(db, grace)}
    documents, useless = db.execute(_overdue_documents, until), db.execute(_garbage, until)
    return Objects(sorted(documents.scalars()), sorted(useless.scalars()))


def condemn(db: Connection, grace: float) -> Objects:
    """Take garbage out of the catalog, as much as others can wait for; everything that is not settled yet."""
    late = {"commits": list(db.execute(_late, {"until": _end_of(db, grace)}).scalars())}
    _condemn_packs(db, _some_packs(db.execute(_first_useless, late)))
    db.execute(_loosen, late)
    db.execute(_purge, late)
    documents, condemned = db.execute(_unowned_documents).scalars(), db.execute(_condemned).scalars()
    return Objects(sorted(documents), sorted(condemned))


def settle(db: Connection, done: Objects) -> None:
    """These objects are gone from storage."""
    for documents in in_lists(done.documents):
        db.execute(_note_gone, {"names": documents})
        db.execute(_settle_documents, {"names": documents})
    for names in in_lists(done.packs):
        db.execute(_settle_packs, {"names": names})


def _end_of(db: Connection, grace: float) -> float:
    """What was deleted until then is purged; the database's clock is read once, so that all statements agree."""
    return db.execute(_now).scalar_one() - grace


def _some_packs(useless: Iterable[Row[int, int]]) -> list[int]:
    """Rows of the first of these packs, as many as go at once. What is left is useless the next time too."""
    keys: list[int] = []
    room = _CHUNKS_AT_ONCE
    for key, held in useless:
        if keys and held > room:
            break
        keys.append(key)
        room -= held
    return keys


def _condemn_packs(db: Connection, keys: Sequence[int]) -> None:
    for some in in_lists(keys):
        for taking in (_forget_chunks, _forget_needs, _condemn):
            db.execute(taking, {"packs": some})
