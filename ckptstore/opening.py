"""Finding or founding a store: its settings in storage, its catalog, and whether both are for this version."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, cast, get_args

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.catalog import is_at, is_missing, open_catalog, owner_at, sqlite_url
from ckptstore.catalog.engine import Database
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.chunkstore.sealed_catalog import sealed_catalog
from ckptstore.errors import (
    CatalogError,
    CatalogLocation,
    CatalogNotFound,
    CorruptData,
    InvalidArgument,
    NotAStore,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from ckptstore.format import version
from ckptstore.format.codecs import Level
from ckptstore.format.digests import digest_named
from ckptstore.format.keys import PREFIX
from ckptstore.format.sealing import Sealer
from ckptstore.format.version import StoreConfig
from ckptstore.operations.rebuild import RebuildReport, rebuild
from ckptstore.storage import open_storage
from ckptstore.storage.base import Storage
from ckptstore.storage.failures import write_error
from ckptstore.storage.filesystem import network_file_system
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import ReadOnly
from ckptstore.unlocking import KeyFile, create_key, new_passphrase, unlock

CATALOG_FILE = "catalog.sqlite"
_DIGEST = "xxh3_128"
_BRING_BACK = (
    "bring the catalog back from a copy, with no -wal or -shm of another one beside it, or make it anew with ckptstore "
    "rebuild"
)
_ELSEWHERE = "if its catalog lies elsewhere, give catalog= (--catalog); else "
_MOST_NEARBY = 3
_WITH_ROOM = "set TMPDIR to a folder with room, or give catalog= (--catalog)"
_DO_WITHOUT = "to read without it, give read_only=True (--read-only) and no catalog="


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
    _check_settings(chunk_bytes, compression)
    storage = open_storage(url, storage_options=storage_options)
    config = _read_config(storage)
    if config is None and (not create or _has_lost_settings(storage)):
        raise _no_store(storage, "read_only=True" if read_only else "create=False")
    if digest is not None:
        _check_digest(digest, storage, config)
    if catalog is None and config is not None and _must_do_without(storage, read_only=read_only):
        return _open_documents(storage, config, key_file, encrypt=encrypt)
    address = catalog_url(storage, catalog)
    database = Database(address)
    if config is None and key_file is not None and not encrypt:
        raise InvalidArgument(f"{storage.url} is no store yet: give encrypt=True beside key_file=, or leave both out")
    if config is None:  # no folder is made before all that can be wrong was looked at
        if encrypt:
            new_passphrase(key_file)
        _check_free(database, storage)
        storage = open_storage(url, storage_options=storage_options, create=True)
    config = config or _init(storage, digest or _DIGEST, chunk_bytes, encrypt=encrypt, key_file=key_file)
    version.check_features(config.requires_read, "read", storage.url)
    sealer = unlock(storage, config, key_file, encrypt=encrypt)
    refusal = f"the store {storage.url} was opened for reading only: open it without read_only" if read_only else ""
    check_catalog_present(address, storage)
    before = partial(_check_no_commits, storage)
    try:
        found = open_catalog(address, create=create, refusal=refusal, before_making=before, database=database)
        with ExitStack() as on_error:
            on_error.callback(found.close)
            _check_owner(storage, found, config, read_only=read_only)
            on_error.pop_all()
    except CatalogNotFound:
        if catalog is not None or not read_only or not _has_commits(storage):
            raise
        return _open_documents(storage, config, key_file, encrypt=encrypt)  # an interrupted rebuild left what is there
    return _parts(ReadOnly(storage, refusal) if read_only else storage, found, config, sealer, compression)


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


def _parts(
    storage: Storage, catalog: Catalog, config: StoreConfig, sealer: Sealer | None, compression: Level = "auto"
) -> ChunkStore:
    judge = catalog if sealer is None else sealed_catalog(catalog, sealer)
    return ChunkStore(storage, judge, config, sealer, compression)


def _check_owner(storage: Storage, catalog: Catalog, config: StoreConfig, *, read_only: bool) -> None:
    """Raises CatalogError for another store's catalog, CatalogNotFound for a new one beside commits."""
    if catalog.owner() is None and not _has_commits(storage):
        if read_only:
            return
        catalog.bind(config.id)
    owner = catalog.owner()
    if owner is None:
        _check_no_commits(storage, catalog.url)
    if owner != config.id:
        raise _of_another(catalog.url, storage)


def _check_free(database: Database, storage: Storage) -> None:
    """Raises CatalogError for the catalog of another store than the one to be made; a faster process may make it."""
    if owner_at(database) is not None and _read_config(storage) is None:
        database.close()
        raise _of_another(database.url, storage)


def _of_another(catalog: str, storage: Storage) -> CatalogError:
    advice = "give each store a catalog of its own"
    return CatalogError(f"the catalog {catalog} is of another store than {storage.url}: {advice}")


def _check_no_commits(storage: Storage, catalog: str) -> None:
    """Raises CatalogNotFound for commits beside a catalog that knows of nothing."""
    if _has_commits(storage):
        told = f"the catalog {catalog} is empty, but {storage.url} holds commits"
        raise CatalogNotFound(f"{told}: {_BRING_BACK}; {_DO_WITHOUT}")


def check_catalog_present(address: str, storage: Storage) -> None:
    """Raises CatalogError where a new one would stand beside commits that it does not know; none is made."""
    if is_missing(address) and _has_commits(storage):
        told = f"the catalog {address} is not there, but {storage.url} "
        if has_another(address, storage):
            raise CatalogError(f"{told}has a catalog of its own, {CATALOG_FILE}: leave out catalog= (--catalog)")
        raise CatalogError(f"{told}holds commits: {_ELSEWHERE}{_BRING_BACK}; {_DO_WITHOUT}")


def has_another(address: str, storage: Storage) -> bool:
    """Whether a catalog lies in the store's folder, and is not the one at this address."""
    if not isinstance(storage, LocalStorage):
        return False
    own = storage.root / CATALOG_FILE
    return own.exists() and not is_at(address, own)


def _has_commits(storage: Storage) -> bool:
    return next(iter(storage.list("manifests/")), None) is not None


def fill(
    address: str, storage: Storage, config: StoreConfig, sealer: Sealer | None, advance: Advance = ignore
) -> RebuildReport:
    """Make an empty catalog tell of all that lies in storage.

    It becomes the store's last of all, so that one which is not complete is not believed. Raises CatalogError when it
    is one already.
    """
    with closing(open_catalog(address, create=True)) as catalog:
        if catalog.owner() is not None:
            advice = "move it away, or give catalog= (--catalog) an empty database"
            raise CatalogError(f"the catalog {catalog.url} is a store's already: {advice}")
        report = rebuild(_parts(storage, catalog, config, sealer), advance)
        catalog.bind(config.id)
    return report


def _must_do_without(storage: Storage, *, read_only: bool) -> bool:
    """Whether no catalog is at the place itself; a folder's is missed there, unless it is only to be read."""
    if not isinstance(storage, LocalStorage):
        return True
    if not read_only:
        return False
    return network_file_system(storage.root) is not None or is_missing(sqlite_url(storage.root / CATALOG_FILE))


def _open_documents(storage: Storage, config: StoreConfig, key_file: KeyFile, *, encrypt: bool) -> ChunkStore:
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
    return _parts(ReadOnly(storage, refusal), found, config, sealer)


def _temporary_folder(storage: Storage) -> str:
    """A new one. Raises StorageFull, StorageReadOnly, StorageError."""
    try:
        return tempfile.mkdtemp(prefix="ckptstore-")
    except OSError as error:
        told = f"cannot make {error.filename or 'a temporary folder'} for reading {storage.url} without its catalog"
        raise write_error(error)(f"{told}: {error.strerror}; {_WITH_ROOM}") from error


def _remove_folder(folder: str, process: int) -> None:
    """Not in a child that was forked: the parent still reads there."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _no_store(storage: Storage, told: str = "create=False") -> NotAStore:
    advice = f"check the place, or make a store with init, in Python by opening it without {told}"
    return NotAStore(f"{storage.url} holds no {version.KEY}: {_nearby(storage) or _lost(storage) or advice}")


def _has_lost_settings(storage: Storage) -> bool:
    """Asks once more, since another process may just have made the store."""
    return bool(_lost(storage)) and _read_config(storage) is None


def _lost(storage: Storage) -> str:
    """What to do where only the settings of a store are missing."""
    if not isinstance(storage, LocalStorage) or not _has_commits(storage):
        return ""
    return f"commits of a store lie there, so bring back its {version.KEY} from a copy, or from a backup"


def _nearby(storage: Storage) -> str:
    """Asks whether a store one folder below is meant."""
    root = storage.root if isinstance(storage, LocalStorage) else None
    found = sorted(str(path.parent) for path in root.glob(f"*/{version.KEY}")) if root is not None else []
    return f"did you mean {' or '.join(found[:_MOST_NEARBY])}?" if found else ""


def _check_digest(digest: str, storage: Storage, config: StoreConfig | None) -> None:
    if config is None:
        digest_named(digest)
    elif digest != config.digest:
        told = f"digest={digest!r}: the store {storage.url} was made with {config.digest!r}, for good"
        raise InvalidArgument(f"{told}: leave it out, or make another store")


def _check_settings(chunk_bytes: int, compression: str) -> None:
    if compression not in get_args(Level):
        raise InvalidArgument(f"compression={compression!r}: choose one of {', '.join(get_args(Level))}")
    least, most = version.CHUNK_BYTES
    if type(chunk_bytes) is not int or not least <= chunk_bytes <= most:
        raise InvalidArgument(f"chunk_bytes={chunk_bytes!r}: give an int, {least} to {most} bytes")


def existing_config(storage: Storage) -> StoreConfig:
    """The settings of the store that lies there. Raises NotAStore when there is none."""
    config = _read_config(storage)
    if config is None:
        raise _no_store(storage)
    return config


def _read_config(storage: Storage) -> StoreConfig | None:
    try:
        return version.decode(storage.get(version.KEY), storage.url)
    except ObjectNotFound:
        return None


def _init(storage: Storage, digest: str, chunk_bytes: int, *, encrypt: bool, key_file: KeyFile) -> StoreConfig:
    """Write the settings; when another process was faster, take its."""
    other = next(_others(storage), None)
    required = (version.DELTAS, version.ENCRYPTION) if encrypt else (version.DELTAS,)
    config = StoreConfig(
        format=version.FORMAT,
        id=uuid.uuid4().hex,
        digest=digest,
        chunk_bytes=chunk_bytes,
        created=time.time(),
        requires_read=required,
        requires_write=(*required, version.HALVES, version.SECTORS),
        requires_gc=required,
    )
    if other is not None and _read_config(storage) is None:
        advice = _nearby(storage) or "a store needs a place of its own"
        raise NotAStore(f"{storage.url} holds no {version.KEY} but {other}: {advice}")
    key, settings = create_key(storage, config.id, key_file) if encrypt else None, version.encode(config)
    try:
        storage.put(version.KEY, [settings])
    except StorageError as error:
        if key is not None and not _may_hold(storage, settings, error):
            with suppress(StorageError):  # what to tell is why there is no store
                storage.delete(key)
        if not isinstance(error, ObjectExists):
            raise
    return version.decode(storage.get(version.KEY), storage.url)


def _may_hold(storage: Storage, settings: bytes, error: StorageError) -> bool:
    """Whether settings are, or may come to be, those that lie there, though an error came of storing them."""
    if isinstance(error, StorageUnavailable):
        return True
    try:
        return storage.get(version.KEY) == settings
    except ObjectNotFound:
        return False
    except (CorruptData, StorageError):
        return True


def _others(storage: Storage) -> Iterator[str]:
    """What lies there and is no part of a store to be."""
    names = storage.occupants() if isinstance(storage, LocalStorage) else (info.key for info in storage.list(""))
    return (name for name in names if not f"{name}/".startswith(PREFIX))


def catalog_url(storage: Storage, catalog: str | None) -> str:
    """The URL of a store's catalog: one in its folder if none is given. Raises CatalogLocation, InvalidArgument."""
    if catalog is not None:
        return catalog
    if not isinstance(storage, LocalStorage):
        raise InvalidArgument(f"{storage.url} is not a local folder: give catalog= (--catalog), a database URL")
    kind = network_file_system(storage.root)
    if kind is not None:
        told = f"{storage.root} lies on {kind}, where SQLite's locks are not safe"
        raise CatalogLocation(f"{told}: give catalog= (--catalog), a database URL; {_DO_WITHOUT}")
    return sqlite_url(storage.root / CATALOG_FILE)
