"""The catalog in a SQL database: each method one transaction."""

from __future__ import annotations

from collections.abc import Sequence

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
from ckptstore.errors import CatalogError


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

    def again(self, session: str, new: NewCommit) -> CommitRecord | None:
        return self._database.change(making.again, session, new)

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
