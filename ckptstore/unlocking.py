"""The key of an encrypted store: from a file or the environment, to the sealer that uses it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ckptstore.errors import CorruptData, InvalidArgument, MissingData, ObjectNotFound, WrongKey
from ckptstore.format import keys
from ckptstore.format.sealing import KEY_BYTES, Sealer, WrappedKey, require_cryptography
from ckptstore.format.version import ENCRYPTION, StoreConfig
from ckptstore.storage.base import Storage

KEY_FILE = "CKPTSTORE_KEY_FILE"
KEY = "CKPTSTORE_KEY"

_BRING_BACK = (
    "which no passphrase replaces: bring it back from a copy, or repair the store from a process that has it open still"
)

KeyFile = str | os.PathLike[str] | None


def is_sealed(config: StoreConfig) -> bool:
    """Whether these settings are those of an encrypted store."""
    return ENCRYPTION in config.requires_read


def unlock(storage: Storage, config: StoreConfig, key_file: KeyFile, *, encrypt: bool = False) -> Sealer | None:
    """What seals and opens an encrypted store's bytes; None for a store that is not encrypted.

    Raises WrongKey when no key was given, or one that does not open the store; CorruptData when what it opens is
    damaged or gone; InvalidArgument when the store is not encrypted, and who opens it believes that it is: what is
    committed would be stored in clear.
    """
    if not is_sealed(config):
        if encrypt or key_file is not None:
            advice = "leave out encrypt= and key_file=, or make a store in another place"
            raise InvalidArgument(f"{storage.url} is not encrypted, and stays so: {advice}")
        return None
    data_key, wrapped = _data_key(storage, config, _passphrase_of(storage, key_file))
    return Sealer(data_key, config.id, wrapped)


def create_key(storage: Storage, store: str, key_file: KeyFile) -> str:
    """Make a data key for a new store and store it wrapped; the storage key of that."""
    require_cryptography()
    return _put(storage, store, os.urandom(KEY_BYTES), new_passphrase(key_file))


def change_passphrase(storage: Storage, config: StoreConfig, key_file: KeyFile, new_key_file: KeyFile) -> None:
    """Wrap the data key with another passphrase, and then remove it as it was wrapped before.

    Raises WrongKey when somebody else did so meanwhile, and removed what this one stored.
    """
    if not is_sealed(config):
        raise InvalidArgument(
            f"{storage.url} is not encrypted, so that it has no key to change: push it to one that is"
        )
    old = wrapped_keys(storage)
    data_key, _ = _data_key(storage, config, _passphrase_of(storage, key_file))
    new = _put(storage, config.id, data_key, _read(new_key_file))
    for key in old:
        storage.delete(key)
    if new not in wrapped_keys(storage):
        raise WrongKey(
            f"somebody else changed the key of {storage.url} meanwhile: theirs opens it, and not the new one"
        )


def new_passphrase(key_file: KeyFile) -> bytes:
    """The one for a new store. Raises WrongKey when none was given."""
    return _read_passphrase(key_file, "a store is encrypted with a passphrase")


def _passphrase_of(storage: Storage, key_file: KeyFile) -> bytes:
    return _read_passphrase(key_file, f"{storage.url} is encrypted")


def _read_passphrase(key_file: KeyFile, why: str) -> bytes:
    """What a file holds, or else the file or the text that the environment names."""
    if key_file is None and KEY in os.environ and KEY_FILE not in os.environ:
        return _checked(os.fsencode(os.environ[KEY]), KEY)
    chosen = key_file if key_file is not None else os.environ.get(KEY_FILE)
    if chosen is None:
        raise WrongKey(f"{why}: give key_file= (--key-file), or set {KEY_FILE} or {KEY}")
    return _read(chosen)


def _read(key_file: KeyFile) -> bytes:
    if not isinstance(key_file, str | os.PathLike):
        raise InvalidArgument(f"the key file is {key_file!r}: give a path")
    try:
        return _checked(Path(os.path.expanduser(key_file)).read_bytes(), str(key_file))
    except (OSError, ValueError) as error:  # a path with a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"the key file {os.fspath(key_file)!r} cannot be read: {reason}") from None


def _checked(text: bytes, place: str) -> bytes:
    """Without the line's end that editors add."""
    passphrase = text.rstrip(b"\r\n")
    if not passphrase:
        raise InvalidArgument(f"the key in {place} is empty: give a passphrase")
    return passphrase


def _data_key(storage: Storage, config: StoreConfig, passphrase: bytes) -> tuple[bytes, WrappedKey]:
    damaged, tried = list[str](), set[str]()
    while fresh := set(places := wrapped_keys(storage)) - tried:
        tried |= fresh
        for place in sorted(fresh):
            try:
                data = storage.get(place)
                key = keys.unwrap(data, passphrase, config.id)
            except ObjectNotFound:  # another took its place since it was listed, for this passphrase too perhaps
                continue
            except CorruptData:
                damaged.append(place)
                continue
            if key is not None:
                return key, WrappedKey(place, data)
    if not places:
        raise MissingData(f"{storage.url} has lost what lay below {keys.PREFIX}, {_BRING_BACK}")
    if set(damaged).issuperset(places):
        raise CorruptData(f"{storage.url}: {' and '.join(places)} is damaged, {_BRING_BACK}")
    problem = f"the key given does not open {storage.url}: give the one it was made with, or last changed to"
    raise WrongKey(f"{problem}; if it is that one, {keys.PREFIX} is damaged: bring it back from a copy")


def wrapped_keys(storage: Storage) -> list[str]:
    """Where the data key lies, as each passphrase wraps it."""
    return [info.key for info in storage.list(keys.PREFIX) if keys.is_key_key(info.key)]


def _put(storage: Storage, store: str, data_key: bytes, passphrase: bytes) -> str:
    place = f"{keys.PREFIX}{uuid.uuid4().hex}.key"
    storage.put(place, [keys.wrap(data_key, passphrase, store)])
    return place
