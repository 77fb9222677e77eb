"""What is done to a whole store, open or not: its catalog made anew or brought to a newer schema, its key changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ckptstore.catalog.migrate import upgrade
from ckptstore.errors import CatalogError
from ckptstore.format import document, version
from ckptstore.opening.catalogs import CATALOG_FILE, catalog_url, check_catalog_present, has_another
from ckptstore.opening.documents import fill
from ckptstore.opening.settings import existing_config
from ckptstore.operations.mending.rebuild import RebuildReport
from ckptstore.progress import ProgressCallback, meter
from ckptstore.storage import open_storage
from ckptstore.unlocking import KeyFile, change_passphrase, unlock


def migrate_catalog(
    url: str | os.PathLike[str], *, catalog: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Bring the catalog of the store at `url` to this version's schema; its revisions before and after.

    Raises NotAStore, SchemaTooNew, and CatalogError when the migration failed; nothing was changed then.
    """
    storage = open_storage(url, storage_options=storage_options)
    existing_config(storage)
    address = catalog_url(storage, catalog)
    check_catalog_present(address, storage)
    return upgrade(address)


def rebuild_catalog(
    url: str | os.PathLike[str],
    *,
    catalog: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    key_file: KeyFile = None,
    progress: ProgressCallback | None = None,
) -> RebuildReport:
    """Make the catalog of a store anew from its storage: for one that was lost, damaged, or restored too old.

    Every commit whose document and chunks are all there is in it again, as it was made, with its tags. Deletions
    that could still be restored are undone. Nobody may use the store meanwhile. After an interruption, call it again.

    Args:
        url: the store.
        catalog: URL of an empty database; by default `catalog.sqlite` in the folder. One that lies there must have been
            moved away.
        storage_options: what fsspec passes on to the file system of a URL.
        key_file: see `ckptstore.open`.
        progress: called with (stage, bytes done, bytes in all).

    Returns:
        What the catalog has now, and what was left out, with the reason.

    Raises:
        NotAStore: there is none.
        CatalogError: the catalog is one already, or another lies in the folder; or another rebuild is at it.
        StorageError: something cannot be read now; do it again.
    """
    storage = open_storage(url, storage_options=storage_options)
    config = existing_config(storage)
    version.check_features(config.requires_read, "read", storage.url)
    total = sum(info.size for info in storage.list(document.PREFIX))
    sealer = unlock(storage, config, key_file)
    address = catalog_url(storage, catalog)
    if has_another(address, storage):  # two catalogs that both write would not know of each other's commits
        problem = f"{storage.url} has a catalog of its own, {CATALOG_FILE}, and would get another, {catalog}"
        raise CatalogError(f"{problem}: move its own away first, or leave out catalog= (--catalog) and use that")
    return fill(address, storage, config, sealer, meter(progress, "rebuild", total))


def change_key(
    url: str | os.PathLike[str],
    new_key_file: str | os.PathLike[str],
    *,
    key_file: KeyFile = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Let another passphrase open an encrypted store, and the one that did no longer. Nothing is encrypted anew.

    Whoever has kept the old passphrase and a copy of the old `keys/` can still open what was and what will be stored.

    Args:
        url: the store.
        new_key_file: a file with the new passphrase.
        key_file: see `ckptstore.open`.
        storage_options: what fsspec passes on to the file system of a URL.

    Raises:
        WrongKey: the old passphrase does not open the store, and nothing was changed; or somebody else changed it
            meanwhile, to one that opens the store instead of the new one.
        CorruptData: the wrapped key is damaged or gone; nothing was changed.
        InvalidArgument: the store is not encrypted, or a file cannot be read.
        StoreTooNew: the store has what this version would not know how to keep.
    """
    storage = open_storage(url, storage_options=storage_options)
    config = existing_config(storage)
    version.check_features(config.requires_write, "change the key of", storage.url)
    change_passphrase(storage, config, key_file, new_key_file)
