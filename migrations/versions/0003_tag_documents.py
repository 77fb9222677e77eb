"""Where the document of each tag lies in storage; gc stores those of tags that were there before."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add a column that tells another place for each tag."""
    db = op.get_bind()
    op.add_column("tags", sa.Column("document", sa.Text(), nullable=False, server_default=""))
    tags = sa.table("tags", sa.column("run", KEY), sa.column("name", sa.Text()), sa.column("document", sa.Text()))
    for row in db.execute(sa.select(tags.c.run, tags.c.name)).all():
        this = sa.and_(tags.c.run == row.run, tags.c.name == row.name)
        db.execute(sa.update(tags).where(this).values(document=f"tags/{uuid.uuid4().hex}.tag"))
