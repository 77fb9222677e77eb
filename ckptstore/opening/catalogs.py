"""Which catalog is a store's: where it lies, and whether one that lies there is this store's."""

from __future__ import annotations

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import is_at, is_missing, owner_at, sqlite_url
from ckptstore.errors import CatalogError, CatalogLocation, CatalogNotFound, InvalidArgument
from ckptstore.format.version import StoreConfig
from ckptstore.opening.settings import has_commits, read_config
from ckptstore.storage.base import Storage
from ckptstore.storage.filesystem import network_file_system
from ckptstore.storage.local import LocalStorage

CATALOG_FILE = "catalog.sqlite"
_BRING_BACK = (
    "bring the catalog back from a copy, with no -wal or -shm of another one beside it, or make it anew with ckptstore "
    "rebuild"
)
_ELSEWHERE = "if its catalog lies elsewhere, give catalog= (--catalog); else "
_DO_WITHOUT = "to read without it, give read_only=True (--read-only) and no catalog="


def catalog_url(storage: Storage, catalog: str | None) -> str:
    """The URL of a store's catalog: one in its folder if none is given. Raises CatalogLocation, InvalidArgument."""
    if catalog is not None:
        return catalog
    if not isinstance(storage, LocalStorage):
        raise InvalidArgument(f"{storage.url} is not a local folder: give catalog= (--catalog), a database URL")
    kind = network_file_system(storage.root)
    if kind is not None:
        problem = f"{storage.root} lies on {kind}, where SQLite's locks are not safe"
        raise CatalogLocation(f"{problem}: give catalog= (--catalog), a database URL; {_DO_WITHOUT}")
    return sqlite_url(storage.root / CATALOG_FILE)


def must_do_without(storage: Storage, *, read_only: bool) -> bool:
    """Whether no catalog is at the place itself; a folder's is missed there, unless it is only to be read."""
    if not isinstance(storage, LocalStorage):
        return True
    if not read_only:
        return False
    return network_file_system(storage.root) is not None or is_missing(sqlite_url(storage.root / CATALOG_FILE))


def check_catalog_present(address: str, storage: Storage) -> None:
    """Raises CatalogError where a new one would stand beside commits that it does not know; none is made."""
    if is_missing(address) and has_commits(storage):
        problem = f"the catalog {address} is not there, but {storage.url} "
        if has_another(address, storage):
            raise CatalogError(f"{problem}has a catalog of its own, {CATALOG_FILE}: leave out catalog= (--catalog)")
        raise CatalogError(f"{problem}holds commits: {_ELSEWHERE}{_BRING_BACK}; {_DO_WITHOUT}")


def has_another(address: str, storage: Storage) -> bool:
    """Whether a catalog lies in the store's folder, and is not the one at this address."""
    if not isinstance(storage, LocalStorage):
        return False
    own = storage.root / CATALOG_FILE
    return own.exists() and not is_at(address, own)


def check_owner(storage: Storage, catalog: Catalog, config: StoreConfig, *, read_only: bool) -> None:
    """Raises CatalogError for another store's catalog, CatalogNotFound for a new one beside commits."""
    if catalog.owner() is None and not has_commits(storage):
        if read_only:
            return
        catalog.bind(config.id)
    owner = catalog.owner()
    if owner is None:
        check_no_commits(storage, catalog.url)
    if owner != config.id:
        raise _of_another(catalog.url, storage)


def check_free(database: Database, storage: Storage) -> None:
    """Raises CatalogError for the catalog of another store than the one to be made; a faster process may make it."""
    if owner_at(database) is not None and read_config(storage) is None:
        database.close()
        raise _of_another(database.url, storage)


def check_no_commits(storage: Storage, catalog: str) -> None:
    """Raises CatalogNotFound for commits beside a catalog that knows of nothing."""
    if has_commits(storage):
        problem = f"the catalog {catalog} is empty, but {storage.url} holds commits"
        raise CatalogNotFound(f"{problem}: {_BRING_BACK}; {_DO_WITHOUT}")


def _of_another(catalog: str, storage: Storage) -> CatalogError:
    advice = "give each store a catalog of its own"
    return CatalogError(f"the catalog {catalog} is of another store than {storage.url}: {advice}")
