"""Documents of commits that a rebuild left out, until their steps are made anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "left_out_documents",
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("document", name="pk_left_out_documents"),
    )
    op.create_index("ix_left_out_documents_run_step", "left_out_documents", ["run", "step"])
