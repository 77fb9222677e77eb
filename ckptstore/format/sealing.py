"""Encryption at rest: payloads and manifest documents, sealed with a key that the storage never sees.

AES-256-GCM from the package cryptography. Each object is sealed with a key of its own, derived by HKDF-SHA256 (RFC
5869) from the store's data key and the object's name, which is random and never used again; the nonce is the position
in the object. So no key ever meets a nonce twice, and nothing but the tag, 16 bytes, is added. The store's id, the
name, the position and what the caller binds are authenticated: bytes that were moved anywhere else do not open.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.errors import CorruptData, InvalidArgument
from ckptstore.format.buffers import Buffer

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


KEY_BYTES = 32
SEAL_BYTES = 16
"""What is added to what is sealed."""
_NONCE_BYTES = 12
_KEYS_KEPT = 256


class WrappedKey(NamedTuple):
    """A store's data key as a passphrase wraps it: where it is stored, and the bytes there."""

    place: str
    data: bytes


class Sealer:
    """Seals and opens with the data key of one store. May be used by several threads at once.

    Args:
        key: the data key, `KEY_BYTES` random bytes.
        store: the store's id.
        wrapped: the file that the key came from.
    """

    def __init__(self, key: bytes, store: str, wrapped: WrappedKey | None = None) -> None:
        require_cryptography()
        self._key, self._store, self.wrapped = key, store, wrapped
        self._cipher = lru_cache(_KEYS_KEPT)(self._new_cipher)

    def __reduce__(self) -> tuple[type[Sealer], tuple[bytes, str, WrappedKey | None]]:
        return Sealer, (self._key, self._store, self.wrapped)

    def seal(self, name: str, position: int, data: Buffer, bound: bytes = b"") -> bytes:
        """The sealed bytes, 16 more than `data`. To be called once for a position of an object."""
        return self._cipher(name).encrypt(_nonce(position), data, self._associated(name, position, bound))

    def open(self, name: str, position: int, data: Buffer, bound: bytes = b"") -> bytes:
        """What was sealed. Raises CorruptData when it was not sealed here, or altered since."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher(name).decrypt(_nonce(position), data, self._associated(name, position, bound))
        except InvalidTag:
            raise CorruptData("its bytes were altered or moved: they do not open") from None

    def derive(self, purpose: str) -> bytes:
        """A key for something else."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        return HKDF(SHA256(), KEY_BYTES, salt=self._store.encode(), info=purpose.encode()).derive(self._key)

    def _new_cipher(self, name: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self.derive(f"object {name}"))

    def _associated(self, name: str, position: int, bound: bytes) -> bytes:
        return f"{self._store} {name} {position} ".encode() + bound


def require_cryptography() -> None:
    """Raises InvalidArgument when the package is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        advice = 'pip install "ckptstore[encryption]"'
        raise InvalidArgument(f"an encrypted store needs a package: {advice}") from None


def _nonce(position: int) -> bytes:
    return position.to_bytes(_NONCE_BYTES, "big")
