"""Where the document of each tag lies in storage; gc stores those of tags that were there before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add a column."""
    op.add_column("tags", sa.Column("document", sa.Text(), nullable=False, server_default=sa.text("''")))
