"""How Alembic meets the catalog: on the connection it is given, or at `-x url=…` when a developer writes a revision."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from ckptstore.catalog.engine import Database
from ckptstore.catalog.schema import metadata


def run(connection: Connection) -> None:
    """Run the wanted revisions in the connection's transaction."""
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(context.get_x_argument(as_dictionary=True)["url"]).write() as own:
        run(own)
