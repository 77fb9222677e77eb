"""The history of the catalog's schema, as Alembic revisions; installed as `ckptstore._migrations`."""
