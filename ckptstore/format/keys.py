"""The wrapped data key of an encrypted store: changing the passphrase wraps it anew and touches nothing else."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress

import msgspec

from ckptstore.errors import CorruptData
from ckptstore.format.sealing import KEY_BYTES, SEAL_BYTES, Sealer, require_cryptography

PREFIX = "keys/"
_KEY = re.compile(r"keys/[0-9a-f]{32}\.key")
_COST = 1 << 16
_MOST_COST = 1 << 18  # 256 MiB, so that a hostile one cannot fill the memory
_BLOCK, _SALT_BYTES = 8, 16
_NAME = "data key"


class _Wrapped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data key sealed with a key that scrypt (RFC 7914) makes of a passphrase."""

    kdf: str
    cost: int
    salt: bytes
    key: bytes


def is_key_key(key: str) -> bool:
    """Whether a key looks like those of wrapped data keys; other files below `keys/` are somebody else's."""
    return _KEY.fullmatch(key) is not None


def wrap(key: bytes, passphrase: bytes, store: str) -> bytes:
    """The file's bytes: JSON."""
    salt = secrets.token_bytes(_SALT_BYTES)
    sealed = _sealer(passphrase, salt, _COST, store).seal(_NAME, 0, key)
    return msgspec.json.format(msgspec.json.encode(_Wrapped("scrypt", _COST, salt, sealed)), indent=2) + b"\n"


def unwrap(data: bytes, passphrase: bytes, store: str) -> bytes | None:
    """The data key, or None when the passphrase, or the store, is another. Raises CorruptData for what is none."""
    wrapped = _decode(data)
    with suppress(CorruptData):
        return _sealer(passphrase, wrapped.salt, wrapped.cost, store).open(_NAME, 0, wrapped.key)
    return None


def is_wrapped(data: bytes) -> bool:
    """Whether these are the bytes of a wrapped data key, as far as that can be told without its passphrase."""
    with suppress(CorruptData):
        _decode(data)
        return True
    return False


def _decode(data: bytes) -> _Wrapped:
    try:
        wrapped = msgspec.json.decode(data, type=_Wrapped)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"this is no wrapped key: {error}") from error
    power_of_two = wrapped.cost > 1 and not wrapped.cost & (wrapped.cost - 1)
    sealed = KEY_BYTES + SEAL_BYTES
    if wrapped.kdf != "scrypt" or not power_of_two or wrapped.cost > _MOST_COST or len(wrapped.key) != sealed:
        raise CorruptData("this is no wrapped key: nobody makes one of such a cost, size or kind")
    return wrapped


def _sealer(passphrase: bytes, salt: bytes, cost: int, store: str) -> Sealer:
    require_cryptography()
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Sealer(Scrypt(salt, KEY_BYTES, cost, _BLOCK, 1).derive(passphrase), store)
