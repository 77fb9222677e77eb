"""Reading a store without its catalog: by one that is made from its documents for as long as it is used."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from contextlib import closing

from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.sealed_catalog import sealed_catalog
from ckptstore.errors import CatalogError, StorageFull
from ckptstore.format import version
from ckptstore.format.sealing import Sealer
from ckptstore.format.version import StoreConfig
from ckptstore.opening.catalogs import CATALOG_FILE
from ckptstore.operations.mending.rebuild import RebuildReport, rebuild
from ckptstore.storage.base import Storage
from ckptstore.storage.failures import write_error
from ckptstore.storage.wrappers import ReadOnly
from ckptstore.unlocking import KeyFile, unlock

_WITH_ROOM = "set TMPDIR to a folder with room, or give catalog= (--catalog)"


def open_documents(storage: Storage, config: StoreConfig, key_file: KeyFile, *, encrypt: bool) -> ChunkStore:
    """For reading only, with a catalog of our own that is made from the documents, and goes when it is not used."""
    version.check_features(config.requires_read, "read", storage.url)
    sealer = unlock(storage, config, key_file, encrypt=encrypt)
    catalogs = "sqlite:///path/to/catalog.sqlite or postgresql://user@host/database"
    refusal = (
        f"{storage.url} was opened without its catalog, for reading only: give catalog= (--catalog), as {catalogs}"
    )
    if isinstance(storage, ReadOnly):
        refusal = storage.refusal
    folder = _temporary_folder(storage)
    address = sqlite_url(os.path.join(folder, CATALOG_FILE))
    try:
        report = fill(address, storage, config, sealer)
        found = open_catalog(address, create=False, refusal=refusal)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, StorageFull):
            raise StorageFull(f"{error}; it was made for reading without one: {_WITH_ROOM}") from error
        raise
    weakref.finalize(found, _remove_folder, folder, os.getpid())
    for left in report.left_out:
        warnings.warn(f"{left.object} is left out: {left.reason}", stacklevel=4)
    return ChunkStore(ReadOnly(storage, refusal), sealed_catalog(found, sealer), config, sealer)


def fill(
    address: str, storage: Storage, config: StoreConfig, sealer: Sealer | None, advance: Advance = ignore
) -> RebuildReport:
    """Record in an empty catalog all that lies in storage.

    It becomes the store's last of all, so that one which is not complete is not believed. Raises CatalogError when it
    is one already.
    """
    with closing(open_catalog(address, create=True)) as catalog:
        if catalog.owner() is not None:
            advice = "move it away, or give catalog= (--catalog) an empty database"
            raise CatalogError(f"the catalog {catalog.url} is a store's already: {advice}")
        report = rebuild(ChunkStore(storage, sealed_catalog(catalog, sealer), config, sealer), advance)
        catalog.bind(config.id)
    return report


def _temporary_folder(storage: Storage) -> str:
    """A new one. Raises StorageFull, StorageReadOnly, StorageError."""
    try:
        return tempfile.mkdtemp(prefix="ckptstore-")
    except OSError as error:
        problem = f"cannot make {error.filename or 'a temporary folder'} for reading {storage.url} without its catalog"
        raise write_error(error)(f"{problem}: {error.strerror}; {_WITH_ROOM}") from error


def _remove_folder(folder: str, process: int) -> None:
    """Not in a child that was forked: the parent still reads there."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
