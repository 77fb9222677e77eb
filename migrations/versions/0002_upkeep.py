"""What upkeep needs to know: waste in packs, when packs were verified, what was lost, and documents that are gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add two columns and two tables."""
    op.add_column("packs", sa.Column("verified", sa.Float()))
    op.add_column("commit_packs", sa.Column("bytes", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "gone_documents",
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("document", name="pk_gone_documents"),
    )
    op.create_table(
        "lost_chunks",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("commit", KEY, nullable=False),
        sa.ForeignKeyConstraint(["commit"], ["commits.key"], name="fk_lost_chunks_commit", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", "commit", name="pk_lost_chunks"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_lost_chunks_commit", "lost_chunks", ["commit"])
