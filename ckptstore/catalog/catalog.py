"""The catalog in a SQL database: each method one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from sqlalchemy import URL

from ckptstore.catalog import (
    collection,
    deleting,
    driver_errors,
    finding,
    making,
    owning,
    queries,
    rewriting,
    sessions,
    sqlite,
    tagging,
    upkeep,
)
from ckptstore.catalog.engine import Database
from ckptstore.catalog.records import (
    CatalogStats,
    ChunkLocation,
    CommitRecord,
    LeftOutDocument,
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
        found = self._database.ask(owning.owner)
        self._database.keep_to(found)
        return found

    def bind(self, store: str) -> None:
        self._database.change(owning.bind, store)

    def runs(self) -> list[RunRecord]:
        return self._database.ask(queries.all_runs)

    def steps(self, run: str) -> list[int]:
        return self._database.ask(queries.steps, run)

    def newest(self, run: str, most: int) -> CommitRecord | None:
        return self._database.ask(finding.newest, run, most)

    def commits(self, run: str | None = None, *, deleted: bool = False) -> list[CommitRecord]:
        return self._database.ask(finding.all_commits, run, deleted=deleted)

    def find(self, run: str, step: int | str) -> CommitRecord:
        return self._database.ask(finding.find, run, step)

    def by_id(self, commit: str) -> CommitRecord | None:
        return self._database.ask(finding.by_id, commit)

    def manifest(self, commit: str) -> bytes:
        return self._database.ask(queries.manifest, commit)

    def deleted_document(self, run: str, step: int) -> tuple[str, bytes] | None:
        return self._database.ask(queries.deleted_document, run, step)

    def locate(self, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        return self._database.ask(queries.locate, digests)

    def packs(self, commit: str | None = None) -> list[PackRecord]:
        return self._database.ask(queries.all_packs, commit)

    def pack_chunks(self, pack: str) -> list[ChunkLocation]:
        return self._database.ask(queries.pack_chunks, pack)

    def stats(self) -> CatalogStats:
        return self._database.ask(queries.stats)

    def check(self) -> list[str]:
        damage = self.damage(chunks=True)
        if damage:
            return damage
        return self._database.ask(queries.check)

    def damage(self, *, chunks: bool) -> list[str]:
        try:
            return self._database.ask(sqlite.integrity, () if chunks else collection.DECIDING)
        except CatalogError as error:
            message = driver_errors.damage_message(error)
            if message is None:
                raise
            return [message]

    def users(self, pack: str) -> list[str]:
        return self._database.ask(upkeep.users, pack)

    def copies(self, digests: Sequence[bytes]) -> list[ChunkLocation]:
        return self._database.ask(upkeep.copies, digests)

    def lost(self) -> dict[bytes, list[str]]:
        return self._database.ask(upkeep.lost)

    def forget_lost(self, digests: Sequence[bytes]) -> None:
        self._database.change(upkeep.forget_lost, digests)

    def gone(self, listed: Objects) -> Objects:
        return self._database.ask(upkeep.gone, listed)

    def unknown(self, listed: Objects) -> Objects:
        return self._database.ask(upkeep.unknown, listed)

    def open_session(self, lease_seconds: float) -> str:
        return self._database.change(sessions.open_session, lease_seconds)

    def extend_session(self, session: str, lease_seconds: float) -> None:
        self._database.change(sessions.extend_session, session, lease_seconds)

    def end_session(self, session: str) -> None:
        self._database.change(sessions.end_session, session)

    def pin(self, session: str, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        return self._database.change(sessions.pin, session, digests)

    def reserve(self, session: str, packs: Sequence[str], document: str | None = None) -> None:
        self._database.change(sessions.reserve, session, packs, document)

    def commit(self, session: str, new: NewCommit) -> CommitRecord:
        made = self._database.change(making.commit, session, new)
        self._database.keep_reserve()
        return made

    def enter(self, new: NewCommit) -> None:
        self._database.change(making.enter, new)

    def leave_out(self, found: Sequence[LeftOutDocument]) -> None:
        self._database.change(upkeep.leave_out, found)

    def rewrite(self, session: str, new: Rewrite) -> None:
        self._database.change(rewriting.rewrite, session, new)

    def tag(
        self, session: str, name: str, commit: CommitRecord, document: str, instead_of: str | None = None
    ) -> str | None:
        return self._database.change(tagging.tag, session, name, commit, document, instead_of)

    def enter_tags(self, records: Sequence[TagRecord]) -> None:
        self._database.change(tagging.enter_tags, records)

    def untag(self, run: str, name: str) -> str:
        return self._database.free(tagging.untag, run, name)

    def tags(self, run: str | None = None) -> list[TagRecord]:
        return self._database.ask(queries.all_tags, run)

    def delete(self, gone: Sequence[CommitRecord]) -> None:
        self._database.free(deleting.delete_commits, gone)

    def restore(self, run: str, step: int) -> CommitRecord:
        return self._database.change(deleting.restore, run, step)

    def mark_verified(self, packs: Sequence[str]) -> None:
        self._database.change(upkeep.mark_verified, packs)

    def replace_manifest(self, commit: str, data: bytes) -> None:
        self._database.change(upkeep.replace_manifest, commit, data)

    def fence_expired(self) -> int:
        return self._database.free(sessions.fence_expired)

    def garbage(self, grace: float) -> Objects:
        return self._database.ask(collection.garbage, grace)

    def condemn(self, grace: float) -> Objects:
        return self._database.free(collection.condemn, grace)

    def settle(self, done: Objects) -> None:
        self._database.free(collection.settle, done)
        self._database.keep_reserve()


def open_catalog(
    url: str,
    *,
    create: bool,
    refusal: str = "",
    before_making: Callable[[str], None] = lambda url: None,
    database: Database | None = None,
) -> SqlCatalog:
    """The catalog at a SQLAlchemy URL, `sqlite:///path/to/catalog.sqlite` or `postgresql://user@host/database`.

    With `create`, an empty place gets the schema, unless `before_making` raises CatalogError when it is given the URL;
    two processes may do so at once. With a `refusal`, every method that writes raises StorageReadOnly with it.
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
    database.keep_reserve()
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
