"""Finding or founding a store: its settings in storage, its catalog, and whether both are for this version."""

from ckptstore.opening.catalogs import CATALOG_FILE, catalog_url
from ckptstore.opening.parts import attach_parts, open_parts
from ckptstore.opening.settings import existing_config

__all__ = ["CATALOG_FILE", "attach_parts", "catalog_url", "existing_config", "open_parts"]
