from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.catalog.catalog import SqlCatalog
from ckptstore.catalog.opening import open_catalog
from ckptstore.testing.catalog import CatalogConformance


class TestSqlite(CatalogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], SqlCatalog]:
        return lambda: open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite", create=True)


class TestPostgres(CatalogConformance):
    @pytest.fixture
    def opener(self, postgres: str) -> Callable[[], SqlCatalog]:
        return lambda: open_catalog(postgres, create=True)
