"""The catalog in a SQL database: each method one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from sqlalchemy import URL

from ckptstore.catalog import collection, dialects, names, queries, rewriting, sessions, upkeep
from ckptstore.catalog.engine import Database
from ckptstore.catalog.records import (
    CatalogStats,
    ChunkLocation,
    CommitRecord,
    NewCommit,
    Objects,
    PackRecord,
    Rewrite,
    RunRecord,
    TagRecord,
)
from ckptstore.catalog.versions import check_version, create_tables, missing, stored_version
from ckptstore.errors import CatalogError, InvalidArgument


class SqlCatalog:
    """`Catalog` on SQLite or Postgres. Safe for threads, fork and pickle."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def url(self) -> str:
        return self._database.url

    def close(self) -> None:
        self._database.close()

    def owner(self) -> str | None:
        with self._database.read() as db:
            return names.owner(db)

    def bind(self, store: str) -> None:
        with self._database.write() as db:
            names.bind(db, store)

    def runs(self) -> list[RunRecord]:
        with self._database.read() as db:
            return queries.all_runs(db)

    def steps(self, run: str) -> list[int]:
        with self._database.read() as db:
            return queries.steps(db, run)

    def newest(self, run: str, most: int) -> CommitRecord | None:
        with self._database.read() as db:
            return queries.newest(db, run, most)

    def commits(self, run: str | None = None, *, deleted: bool = False) -> list[CommitRecord]:
        with self._database.read() as db:
            return queries.all_commits(db, run, deleted=deleted)

    def find(self, run: str, step: int | str) -> CommitRecord:
        with self._database.read() as db:
            return queries.find(db, run, step)

    def by_id(self, commit: str) -> CommitRecord | None:
        with self._database.read() as db:
            return queries.by_id(db, commit)

    def manifest(self, commit: str) -> bytes:
        with self._database.read() as db:
            return queries.manifest(db, commit)

    def locate(self, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        with self._database.read() as db:
            return queries.locate(db, digests)

    def packs(self, commit: str | None = None) -> list[PackRecord]:
        with self._database.read() as db:
            return queries.all_packs(db, commit)

    def pack_chunks(self, pack: str) -> list[ChunkLocation]:
        with self._database.read() as db:
            return queries.pack_chunks(db, pack)

    def stats(self) -> CatalogStats:
        with self._database.read() as db:
            return queries.stats(db)

    def check(self) -> list[str]:
        damage = self.damage(chunks=True)
        if damage:
            return damage
        with self._database.read() as db:
            return queries.check(db)

    def damage(self, *, chunks: bool) -> list[str]:
        try:
            with self._database.read() as db:
                return dialects.integrity(db, () if chunks else collection.DECIDING)
        except CatalogError as error:
            told = dialects.damage_told(error)
            if told is None:
                raise
            return [told]

    def users(self, pack: str) -> list[str]:
        with self._database.read() as db:
            return upkeep.users(db, pack)

    def copies(self, digests: Sequence[bytes]) -> list[ChunkLocation]:
        with self._database.read() as db:
            return upkeep.copies(db, digests)

    def lost(self) -> dict[bytes, list[str]]:
        with self._database.read() as db:
            return upkeep.lost(db)

    def forget_lost(self, digests: Sequence[bytes]) -> None:
        with self._database.write() as db:
            upkeep.forget_lost(db, digests)

    def gone(self, listed: Objects) -> Objects:
        with self._database.read() as db:
            return upkeep.gone(db, listed)

    def unknown(self, listed: Objects) -> Objects:
        with self._database.read() as db:
            return upkeep.unknown(db, listed)

    def open_session(self, lease_seconds: float) -> str:
        with self._database.write() as db:
            return sessions.open_session(db, lease_seconds)

    def extend_session(self, session: str, lease_seconds: float) -> None:
        with self._database.write() as db:
            sessions.extend_session(db, session, lease_seconds)

    def end_session(self, session: str) -> None:
        with self._database.write() as db:
            sessions.end_session(db, session)

    def pin(self, session: str, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        with self._database.write() as db:
            return sessions.pin(db, session, digests)

    def reserve(self, session: str, packs: Sequence[str], document: str | None = None) -> None:
        with self._database.write() as db:
            sessions.reserve(db, session, packs, document)

    def commit(self, session: str, new: NewCommit) -> CommitRecord:
        with self._database.write() as db:
            return sessions.commit(db, session, new)

    def enter(self, new: NewCommit) -> None:
        with self._database.write() as db:
            sessions.enter(db, new)

    def rewrite(self, session: str, new: Rewrite) -> None:
        with self._database.write() as db:
            rewriting.rewrite(db, session, new)

    def tag(
        self, session: str, name: str, commit: CommitRecord, document: str, instead_of: str | None = None
    ) -> str | None:
        with self._database.write() as db:
            return names.tag(db, session, name, commit, document, instead_of)

    def enter_tags(self, told: Sequence[TagRecord]) -> None:
        with self._database.write() as db:
            names.enter_tags(db, told)

    def untag(self, run: str, name: str) -> str:
        with self._database.write() as db:
            return names.untag(db, run, name)

    def tags(self, run: str | None = None) -> list[TagRecord]:
        with self._database.read() as db:
            return queries.all_tags(db, run)

    def delete(self, gone: Sequence[CommitRecord]) -> None:
        with self._database.write() as db:
            names.delete_commits(db, gone)

    def restore(self, run: str, step: int) -> CommitRecord:
        with self._database.write() as db:
            return names.restore(db, run, step)

    def mark_verified(self, packs: Sequence[str]) -> None:
        with self._database.write() as db:
            upkeep.mark_verified(db, packs)

    def replace_manifest(self, commit: str, data: bytes) -> None:
        with self._database.write() as db:
            upkeep.replace_manifest(db, commit, data)

    def fence_expired(self) -> int:
        with self._database.write() as db:
            return sessions.fence_expired(db)

    def garbage(self, grace: float) -> Objects:
        with self._database.read() as db:
            return collection.garbage(db, grace)

    def condemn(self, grace: float) -> Objects:
        with self._database.write() as db:
            return collection.condemn(db, grace)

    def settle(self, done: Objects) -> None:
        with self._database.write() as db:
            collection.settle(db, done)


def open_catalog(
    url: str,
    *,
    create: bool,
    refusal: str = "",
    before_making: Callable[[str], None] = lambda url: None,
    database: Database | None = None,
) -> SqlCatalog:
    """The catalog at a SQLAlchemy URL, `sqlite:///path/to/catalog.sqlite` or `postgresql://user@host/database`.

    With `create`, an empty place gets the schema, unless `before_making` raises CatalogError when it is told the URL;
    two processes may do so at once. With a `refusal`, every method that writes raises StorageReadOnly telling it.
    Without one, a `database` of that URL is used that was at hand.

    Raises:
        InvalidArgument: not such a URL.
        SchemaTooOld, SchemaTooNew: the schema is not this version's.
        CatalogNotFound: there is none.
        CatalogError: the database can not be read.
    """
    if not create and is_missing(url):
        raise missing(f"the catalog {url} is not there")
    if database is None or refusal:
        database = Database(url, refusal=refusal)
    with ExitStack() as on_error:
        on_error.callback(database.close)
        if create:
            database.prepare()
        version = stored_version(database)
        if version is None and create:
            version = _make(database, before_making)
        check_version(version, database.url)
        on_error.pop_all()
    return SqlCatalog(database)


def _make(database: Database, before: Callable[[str], None]) -> str:
    """An empty database's catalog; its revision."""
    try:
        before(database.url)
    except CatalogError:
        if stored_version(database) is None:  # no other process was faster
            raise
    return create_tables(database)


def owner_at(database: Database) -> str | None:
    """The id of the store whose catalog the database is, or None. Raises SchemaTooOld, SchemaTooNew, CatalogError."""
    if _is_missing(database):
        return None
    version = stored_version(database)
    if version is None:
        return None
    check_version(version, database.url)
    return SqlCatalog(database).owner()


def is_missing(url: str) -> bool:
    """Whether the address is that of a file which is not there."""
    return _is_missing(Database(url))


def _is_missing(database: Database) -> bool:
    parsed = database.parsed
    return parsed.get_backend_name() == "sqlite" and not os.path.exists(parsed.database or "")


def is_at(url: str, path: str | os.PathLike[str]) -> bool:
    """Whether the address is that of this file."""
    parsed = Database(url).parsed
    return parsed.get_backend_name() == "sqlite" and os.path.realpath(parsed.database or "") == os.path.realpath(path)


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a catalog in a file, whatever characters its path has. Raises InvalidArgument if they are none."""
    whole = os.path.abspath(path)
    try:
        return URL.create("sqlite", database=whole).render_as_string()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the path {whole!r} is no text that UTF-8 can hold: name it otherwise") from error
