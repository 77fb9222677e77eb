"""The conformance suites over the places that `doctor` gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.storage.base import Storage
from ckptstore.testing.catalog import CatalogConformance
from ckptstore.testing.storage import StorageConformance


class TestStorage(StorageConformance):
    """The user's storage."""

    @pytest.fixture
    def storage(self, doctors_storage: Storage) -> Storage:
        """An empty folder in it."""
        return doctors_storage


class TestCatalog(CatalogConformance):
    """The user's database."""

    @pytest.fixture
    def opener(self, doctors_catalog: Callable[[], Catalog]) -> Callable[[], Catalog]:
        """On an empty place in it."""
        return doctors_catalog
