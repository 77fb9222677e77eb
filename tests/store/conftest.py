from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable

import pytest

from ckptstore.testing.audit import Site

Sites = Callable[[], Site]


@pytest.fixture(params=["sqlite", "postgres"])
def catalogs(request, tmp_path):
    """Gives URLs of catalogs that are not there yet, of every kind."""
    if request.param == "postgres":
        return request.getfixturevalue("databases")
    return lambda: f"sqlite:///{tmp_path}/{uuid.uuid4().hex}.sqlite"


@pytest.fixture(params=["folder", "s3", "gcs"])
def sites(request, tmp_path, catalogs) -> Sites:
    """Gives empty sites, of every storage with every database."""
    if request.param == "folder":
        return lambda: Site(str(tmp_path / uuid.uuid4().hex), catalogs())
    server = request.getfixturevalue(f"{request.param}_server")
    return lambda: Site(server.below(uuid.uuid4().hex), catalogs(), server.options)


@pytest.fixture
def place(template, tmp_path):
    """A copy of the store that a module's `template` is."""
    return shutil.copytree(template, tmp_path / "store")
