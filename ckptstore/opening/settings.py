"""What lies at a store's place: its settings, read or written where a store is made, and whether commits do."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import get_args

from ckptstore.errors import (
    CorruptData,
    InvalidArgument,
    NotAStore,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from ckptstore.format import document, version
from ckptstore.format.codecs import Level
from ckptstore.format.digests import digest_named
from ckptstore.format.keys import PREFIX
from ckptstore.format.version import StoreConfig
from ckptstore.storage.base import Storage
from ckptstore.storage.local import LocalStorage
from ckptstore.unlocking import KeyFile, create_key

_MOST_NEARBY = 3


def existing_config(storage: Storage) -> StoreConfig:
    """The settings of the store that lies there. Raises NotAStore when there is none."""
    config = read_config(storage)
    if config is None:
        raise no_store(storage)
    return config


def read_config(storage: Storage) -> StoreConfig | None:
    try:
        return version.decode(storage.get(version.KEY), storage.url)
    except ObjectNotFound:
        return None


def no_store(storage: Storage, option: str = "create=False") -> NotAStore:
    advice = f"check the place, or make a store with init, in Python by opening it without {option}"
    return NotAStore(f"{storage.url} holds no {version.KEY}: {_nearby(storage) or _lost(storage) or advice}")


def has_lost_settings(storage: Storage) -> bool:
    """Asks once more, since another process may just have made the store."""
    return bool(_lost(storage)) and read_config(storage) is None


def _lost(storage: Storage) -> str:
    """What to do where only the settings of a store are missing."""
    if not isinstance(storage, LocalStorage) or not has_commits(storage):
        return ""
    return f"commits of a store lie there, so bring back its {version.KEY} from a copy, or from a backup"


def _nearby(storage: Storage) -> str:
    """Asks whether a store one folder below is meant."""
    root = storage.root if isinstance(storage, LocalStorage) else None
    found = sorted(str(path.parent) for path in root.glob(f"*/{version.KEY}")) if root is not None else []
    return f"did you mean {' or '.join(found[:_MOST_NEARBY])}?" if found else ""


def check_settings(chunk_bytes: int, compression: str) -> None:
    if compression not in get_args(Level):
        raise InvalidArgument(f"compression={compression!r}: choose one of {', '.join(get_args(Level))}")
    least, most = version.CHUNK_BYTES
    if type(chunk_bytes) is not int or not least <= chunk_bytes <= most:
        raise InvalidArgument(f"chunk_bytes={chunk_bytes!r}: give an int, {least} to {most} bytes")


def check_digest(digest: str, storage: Storage, config: StoreConfig | None) -> None:
    if config is None:
        digest_named(digest)
    elif digest != config.digest:
        problem = f"digest={digest!r}: the store {storage.url} was made with {config.digest!r}, for good"
        raise InvalidArgument(f"{problem}: leave it out, or make another store")


def found_store(storage: Storage, digest: str, chunk_bytes: int, *, encrypt: bool, key_file: KeyFile) -> StoreConfig:
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
    if other is not None and read_config(storage) is None:
        advice = _nearby(storage) or "a store needs a place of its own"
        raise NotAStore(f"{storage.url} holds no {version.KEY} but {other}: {advice}")
    key, settings = create_key(storage, config.id, key_file) if encrypt else None, version.encode(config)
    try:
        storage.put(version.KEY, [settings])
    except StorageError as error:
        if key is not None and not _may_hold(storage, settings, error):
            with suppress(StorageError):  # what to report is why there is no store
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


def has_commits(storage: Storage) -> bool:
    return next(iter(storage.list(document.PREFIX)), None) is not None
