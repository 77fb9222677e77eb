"""Opening a store: its settings and its catalog are found, or founded, and looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.sealed_catalog import sealed_catalog
from ckptstore.errors import CatalogError, CatalogNotFound, InvalidArgument
from ckptstore.format import version
from ckptstore.format.codecs import Level
from ckptstore.format.version import StoreConfig
from ckptstore.opening.catalogs import (
    catalog_url,
    check_catalog_present,
    check_free,
    check_no_commits,
    check_owner,
    must_do_without,
)
from ckptstore.opening.documents import open_documents
from ckptstore.opening.settings import (
    check_digest,
    check_settings,
    existing_config,
    found_store,
    has_commits,
    has_lost_settings,
    no_store,
    read_config,
)
from ckptstore.storage import Storage, open_storage
from ckptstore.storage.wrappers import ReadOnly
from ckptstore.unlocking import KeyFile, new_passphrase, unlock

_DIGEST = "xxh3_128"


def open_parts(
    url: str | os.PathLike[str],
    *,
    catalog: str | None,
    create: bool,
    read_only: bool,
    digest: str | None,
    chunk_bytes: int,
    storage_options: Mapping[str, Any] | None,
    compression: Level = "auto",
    encrypt: bool = False,
    key_file: KeyFile = None,
) -> ChunkStore:
    """The parts of the store at `url`, made if it is missing and `create` allows it; see `ckptstore.open`."""
    check_settings(chunk_bytes, compression)
    storage = open_storage(url, storage_options=storage_options)
    config = read_config(storage)
    if config is None and (not create or has_lost_settings(storage)):
        raise no_store(storage, "read_only=True" if read_only else "create=False")
    if digest is not None:
        check_digest(digest, storage, config)
    if catalog is None and config is not None and must_do_without(storage, read_only=read_only):
        return open_documents(storage, config, key_file, encrypt=encrypt)
    address = catalog_url(storage, catalog)
    database = Database(address)
    if config is None:
        _check_may_be_made(storage, database, key_file, encrypt=encrypt)
        storage = open_storage(url, storage_options=storage_options, create=True)
        config = found_store(storage, digest or _DIGEST, chunk_bytes, encrypt=encrypt, key_file=key_file)
    version.check_features(config.requires_read, "read", storage.url)
    sealer = unlock(storage, config, key_file, encrypt=encrypt)
    refusal = f"the store {storage.url} was opened for reading only: open it without read_only" if read_only else ""
    check_catalog_present(address, storage)
    try:
        found = _own_catalog(address, database, storage, config, create=create, refusal=refusal)
    except CatalogNotFound:
        if catalog is not None or not read_only or not has_commits(storage):
            raise
        return open_documents(storage, config, key_file, encrypt=encrypt)  # an interrupted rebuild left what is there
    place = ReadOnly(storage, refusal) if read_only else storage
    return ChunkStore(place, sealed_catalog(found, sealer), config, sealer, compression)


def _check_may_be_made(storage: Storage, database: Database, key_file: KeyFile, *, encrypt: bool) -> None:
    """Raises what making a store there would, before any folder is made."""
    if key_file is not None and not encrypt:
        raise InvalidArgument(f"{storage.url} is no store yet: give encrypt=True beside key_file=, or leave both out")
    if encrypt:
        new_passphrase(key_file)
    check_free(database, storage)


def _own_catalog(
    address: str, database: Database, storage: Storage, config: StoreConfig, *, create: bool, refusal: str
) -> Catalog:
    """This store's catalog, which is made if it is missing and `create` allows it. Raises CatalogError."""
    before = partial(check_no_commits, storage)
    found = open_catalog(address, create=create, refusal=refusal, before_making=before, database=database)
    with ExitStack() as on_error:
        on_error.callback(found.close)
        check_owner(storage, found, config, read_only=bool(refusal))
        on_error.pop_all()
    return found


def attach_parts(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    compression: Level = "auto",
    key_file: KeyFile = None,
) -> ChunkStore:
    """The parts of a store for one who writes packs for another, who has the catalog; see `ckptstore.open`."""
    storage = open_storage(url, storage_options=storage_options)
    config = existing_config(storage)
    version.check_features(config.requires_write, "write to", storage.url)
    sealer = unlock(storage, config, key_file)
    return ChunkStore(storage, cast("Catalog", _NoCatalog()), config, sealer, compression)


class _NoCatalog:
    """Stands where the catalog is somebody else's."""

    def __getattr__(self, name: str) -> Any:
        raise CatalogError(f"{name}: this process was to leave the catalog to another one")
