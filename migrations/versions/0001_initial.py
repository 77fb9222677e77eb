"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

LIVE, DELETED = sa.text("deleted IS NULL"), sa.text("deleted IS NOT NULL")
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "stores",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_stores"),
    )
    op.create_table(
        "runs",
        sa.Column("key", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("forked_from", sa.Text()),
        sa.PrimaryKeyConstraint("key", name="pk_runs"),
        sa.UniqueConstraint("name", name="uq_runs_name"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
    )
    op.create_index("ix_sessions_expires", "sessions", ["expires"])
    op.create_table(
        "commits",
        sa.Column("key", KEY, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("run", KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(length=32)),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("deleted", sa.Float()),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("leaves", sa.BigInteger(), nullable=False),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=False),
        sa.Column("new_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["parent"], ["commits.id"], name="fk_commits_parent", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_commits_run"),
        sa.PrimaryKeyConstraint("key", name="pk_commits"),
        sa.UniqueConstraint("id", name="uq_commits_id"),
    )
    op.create_index("ix_commits_deleted", "commits", ["deleted"], sqlite_where=DELETED, postgresql_where=DELETED)
    op.create_index(
        "ix_commits_live", "commits", ["run", "step"], unique=True, sqlite_where=LIVE, postgresql_where=LIVE
    )
    op.create_index("ix_commits_parent", "commits", ["parent"])
    op.create_index("ix_commits_run_step", "commits", ["run", "step"])
    op.create_table(
        "loose_documents",
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("session", sa.String(length=32)),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_loose_documents_session", ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("document", name="pk_loose_documents"),
    )
    op.create_index("ix_loose_documents_session", "loose_documents", ["session"])
    op.create_table(
        "packs",
        sa.Column("key", KEY, nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=9), nullable=False),
        sa.Column("session", sa.String(length=32)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_packs_session", ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("key", name="pk_packs"),
        sa.UniqueConstraint("name", name="uq_packs_name"),
    )
    op.create_index("ix_packs_session", "packs", ["session"])
    op.create_index("ix_packs_state", "packs", ["state"])
    op.create_table(
        "chunks",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("pack", KEY, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("raw_length", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.Integer(), nullable=False),
        sa.Column("base", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["pack"], ["packs.key"], name="fk_chunks_pack"),
        sa.PrimaryKeyConstraint("digest", "pack", name="pk_chunks"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chunks_pack", "chunks", ["pack"])
    op.create_table(
        "commit_packs",
        sa.Column("commit", KEY, nullable=False),
        sa.Column("pack", KEY, nullable=False),
        sa.ForeignKeyConstraint(["commit"], ["commits.key"], name="fk_commit_packs_commit", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["pack"], ["packs.key"], name="fk_commit_packs_pack"),
        sa.PrimaryKeyConstraint("commit", "pack", name="pk_commit_packs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_commit_packs_pack", "commit_packs", ["pack"])
    op.create_table(
        "manifests",
        sa.Column("commit", KEY, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["commit"], ["commits.key"], name="fk_manifests_commit", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("commit", name="pk_manifests"),
    )
    op.create_table(
        "pins",
        sa.Column("session", sa.String(length=32), nullable=False),
        sa.Column("pack", KEY, nullable=False),
        sa.ForeignKeyConstraint(["pack"], ["packs.key"], name="fk_pins_pack"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_pins_session", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session", "pack", name="pk_pins"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_pins_pack", "pins", ["pack"])
    op.create_table(
        "tags",
        sa.Column("run", KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("commit", KEY, nullable=False),
        sa.ForeignKeyConstraint(["commit"], ["commits.key"], name="fk_tags_commit"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_tags_run"),
        sa.PrimaryKeyConstraint("run", "name", name="pk_tags"),
    )
    op.create_index("ix_tags_commit", "tags", ["commit"])
