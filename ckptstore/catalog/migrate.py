"""Bringing an older catalog to this version's schema."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog.engine import Database
from ckptstore.catalog.schema import HEAD
from ckptstore.catalog.versions import check_version, read_version
from ckptstore.errors import CatalogError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection


def upgrade(url: str) -> tuple[str, str]:
    """Bring the schema to this version's, in one transaction; the revisions before and after ("base": no tables).

    Raises:
        SchemaTooNew: the schema comes from a newer ckptstore.
        CatalogError: the migration failed; nothing was changed.
    """
    from alembic import command
    from alembic.util import CommandError

    database = Database(url)
    database.prepare()
    try:
        with database.rebuild() as db:
            before = read_version(db, database.url)
            if before is not None and before > HEAD:
                check_version(before, database.url)
            command.upgrade(_config(db), "head")
    except CommandError as error:
        raise CatalogError(f"the catalog {database.url} can not be migrated: {error}") from error
    finally:
        database.close()
    return before or "base", HEAD


def script_location() -> Path:
    """The folder of the revisions: packaged when installed from a wheel, beside the package in a source tree."""
    package = "ckptstore._migrations"
    found = importlib.util.find_spec(package)
    if found is not None and found.origin is not None:
        return Path(found.origin).parent
    return Path(__file__).parents[2] / "migrations"


def _config(db: Connection) -> Config:
    from alembic.config import Config

    config = Config(attributes={"connection": db})
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    return config
