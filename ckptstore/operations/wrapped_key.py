"""The wrapped key of an encrypted store, which who has the store open knows as it was, and can store again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, ObjectExists, ObjectNotFound
from ckptstore.format import keys
from ckptstore.format.sealing import WrappedKey
from ckptstore.operations.problem import Problem
from ckptstore.storage.base import Storage
from ckptstore.unlocking import wrapped_keys

_ADVICE = (
    "which no passphrase replaces, so that the store cannot be opened again: repair it from this process, which has "
    "the key still, or bring it back from a copy"
)


def check_key(chunks: ChunkStore) -> Iterator[Problem]:
    """Finds nothing wrong with a key that another passphrase wraps by now."""
    wrapped = _wrapped(chunks)
    wrong = "" if wrapped is None else _wrong(chunks.storage, wrapped)
    if wrapped is not None and wrong:
        yield Problem(wrapped.place, f"the wrapped key {wrong}, {_ADVICE}")


def store_key_again(chunks: ChunkStore) -> bool:
    """Put the wrapped key where it is lacking, for the passphrase that the store was opened with; whether it was."""
    wrapped = _wrapped(chunks)
    if wrapped is None or not _wrong(chunks.storage, wrapped):
        return False
    chunks.storage.delete(wrapped.place)
    with suppress(ObjectExists):  # another repair was faster
        chunks.storage.put(wrapped.place, [wrapped.data])
    return True


def _wrapped(chunks: ChunkStore) -> WrappedKey | None:
    return None if chunks.sealer is None else chunks.sealer.wrapped


def _wrong(storage: Storage, wrapped: WrappedKey) -> str:
    """What is, if anything. Another passphrase's key was stored before this one was removed for it."""
    found = _read(storage, wrapped.place)
    if found is not None:
        return "" if found == wrapped.data else "is damaged"
    return "" if _has_another(storage) or _has_another(storage) else "is gone"  # one may be replaced meanwhile


def _has_another(storage: Storage) -> bool:
    return any(keys.is_wrapped(_read(storage, key) or b"") for key in wrapped_keys(storage))


def _read(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key)
    except ObjectNotFound:
        return None
    except CorruptData:
        return b""
