"""The tables. One schema for SQLite and Postgres.

A session is a row as long as it is open. When the row goes, for whatever reason, its pins go with it and what it had
reserved belongs to nobody (`session` becomes NULL), which is what gc looks for.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

HEAD = "0004"
"""The revision this version of ckptstore reads and writes. Revisions are ordered, zero-padded numbers."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)


class _Bytes(LargeBinary):
    """Bytes that both drivers take as they are."""

    def bind_processor(self, dialect: Dialect) -> None:
        """SQLAlchemy's would wrap each of the many thousands of digests that one commit asks for."""


_Key = BigInteger().with_variant(Integer, "sqlite")
_Name = String(32)


def _reference(table: str, *, on_delete: str | None = None, primary: bool = False, index: bool = False) -> Column[int]:
    target = ForeignKey(f"{table}.key", ondelete=on_delete)
    return Column(table.removesuffix("s"), _Key, target, primary_key=primary, nullable=False, index=index or None)


# One row, once a store has taken the catalog: a catalog beside another storage would be believed and be wrong.
stores = Table("stores", metadata, Column("id", _Name, primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created", Float, nullable=False),
    Column("forked_from", Text),
)

commits = Table(
    "commits",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("id", _Name, nullable=False, unique=True),
    _reference("runs"),
    Column("step", BigInteger, nullable=False),
    Column("parent", _Name, ForeignKey("commits.id", ondelete="SET NULL"), index=True),
    Column("created", Float, nullable=False),
    Column("deleted", Float),
    Column("metadata", Text, nullable=False),
    Column("content", _Bytes, nullable=False),
    Column("document", Text, nullable=False),
    Column("leaves", BigInteger, nullable=False),
    Column("logical_bytes", BigInteger, nullable=False),
    Column("new_bytes", BigInteger, nullable=False),
)
_live = commits.c.deleted.is_(None)
Index("ix_commits_live", commits.c.run, commits.c.step, unique=True, sqlite_where=_live, postgresql_where=_live)
Index("ix_commits_run_step", commits.c.run, commits.c.step)
Index("ix_commits_deleted", commits.c.deleted, sqlite_where=~_live, postgresql_where=~_live)

manifests = Table(
    "manifests",
    metadata,
    _reference("commits", on_delete="CASCADE", primary=True),
    Column("data", _Bytes, nullable=False),
)

tags = Table(
    "tags",
    metadata,
    _reference("runs", primary=True),
    Column("name", Text, primary_key=True),
    _reference("commits", index=True),
    Column("document", Text, nullable=False, server_default=text("''")),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", _Name, primary_key=True),
    Column("expires", Float, nullable=False, index=True),
)

packs = Table(
    "packs",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("name", _Name, nullable=False, unique=True),
    Column("state", String(9), nullable=False, index=True),
    Column("session", _Name, ForeignKey("sessions.id", ondelete="SET NULL"), index=True),
    Column("size", BigInteger, nullable=False),
    Column("chunks", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("verified", Float),
)

# Documents that no commit owns: reserved by a session, or (session NULL) to be removed from storage.
loose_documents = Table(
    "loose_documents",
    metadata,
    Column("document", Text, primary_key=True),
    Column("session", _Name, ForeignKey("sessions.id", ondelete="SET NULL"), index=True),
)

# Names are never used again, so what lies in storage under one of these may go: a writer or a power cut was late.
gone_documents = Table("gone_documents", metadata, Column("document", Text, primary_key=True))

# Of commits that a rebuild left out, since chunks were missing; a commit that is made at such a step supersedes them.
left_out_documents = Table(
    "left_out_documents",
    metadata,
    Column("document", Text, primary_key=True),
    Column("run", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
)
Index("ix_left_out_documents_run_step", left_out_documents.c.run, left_out_documents.c.step)

# Two writers may upload the same chunk at once; each commit relies on the pack it named.
chunks = Table(
    "chunks",
    metadata,
    Column("digest", _Bytes, primary_key=True),
    _reference("packs", primary=True, index=True),
    Column("offset", BigInteger, nullable=False),
    Column("length", BigInteger, nullable=False),
    Column("raw_length", BigInteger, nullable=False),
    Column("codec", Integer, nullable=False),
    Column("base", _Bytes, nullable=False),
    sqlite_with_rowid=False,
)

# `bytes` of the pack are what the commit needs of it.
commit_packs = Table(
    "commit_packs",
    metadata,
    _reference("commits", on_delete="CASCADE", primary=True),
    _reference("packs", primary=True, index=True),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)

# Chunks that commits need and no pack holds any more; whoever brings one back heals them.
lost_chunks = Table(
    "lost_chunks",
    metadata,
    Column("digest", _Bytes, primary_key=True),
    _reference("commits", on_delete="CASCADE", primary=True, index=True),
    sqlite_with_rowid=False,
)

pins = Table(
    "pins",
    metadata,
    Column("session", _Name, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    _reference("packs", primary=True, index=True),
    sqlite_with_rowid=False,
)
