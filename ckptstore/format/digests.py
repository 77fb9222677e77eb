"""Digest functions: a chunk's identity is the digest of its raw bytes.

`xxh3_128` is the default: fast enough that hashing is never what a commit waits for, and safe against accidents.
Someone who chooses bytes on purpose can make two chunks collide under it; a store that is shared with people one
does not trust is made with `sha256` or `blake3`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from ckptstore.errors import InvalidArgument
from ckptstore.format.buffers import Buffer

_MIDSIZE = 240
"""Up to so many bytes XXH3 mixes its 64 and its 128 bits in ways of their own."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest function: its name, the length of a digest in bytes, and the function, which may run in any thread.

    `holds_checksum`: the end of a digest is the `checksum` of the same bytes, if these are more than 240: so it is with
    XXH3, whose 128 bits end with its 64 then.
    """

    name: str
    size: int
    compute: Callable[[Buffer], bytes]
    holds_checksum: bool = False

    def checksum(self, digest: bytes, size: int) -> int | None:
        """The `checksum` of the `size` bytes that have this digest, if it holds that."""
        return int.from_bytes(digest[-8:]) if self.holds_checksum and size > _MIDSIZE else None


def _sha256(data: Buffer) -> bytes:
    return hashlib.sha256(data).digest()


def _blake3() -> Digest:
    try:
        from blake3 import blake3
    except ImportError:
        raise InvalidArgument('digest "blake3" needs a package: pip install "ckptstore[blake3]"') from None
    return Digest("blake3", 32, lambda data: blake3(data).digest())


def _keyed(bare: Digest, key: bytes) -> Digest:
    """As the plain one, but only who has the key can compute it, so that nobody else can tell what a chunk holds.

    BLAKE3 has a keyed mode; SHA-256 becomes HMAC (RFC 2104); XXH3 has no secret worth the name, so its result is
    encrypted as one block of AES.
    """
    if bare.name == "sha256":
        return replace(bare, compute=lambda data: hmac.digest(key, data, "sha256"))
    if bare.name == "blake3":
        from blake3 import blake3

        return replace(bare, compute=lambda data: blake3(data, key=key).digest())
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    block = Cipher(AES256(key), ECB())  # noqa: S305 - one block, as the permutation that it is
    return replace(bare, compute=lambda data: block.encryptor().update(bare.compute(data)), holds_checksum=False)


_MAKERS: dict[str, Callable[[], Digest]] = {
    "xxh3_128": lambda: Digest("xxh3_128", 16, xxhash.xxh3_128_digest, holds_checksum=True),
    "sha256": lambda: Digest("sha256", 32, _sha256),
    "blake3": _blake3,
}


def digest_named(name: str, key: bytes | None = None) -> Digest:
    """The digest function of a name, keyed when there is a key of 32 bytes.

    Raises InvalidArgument for a name that this version does not know.
    """
    if name not in list(_MAKERS):  # which takes what has no hash too
        raise InvalidArgument(f"unknown digest {name!r}; choose one of {', '.join(_MAKERS)}")
    bare = _MAKERS[name]()
    return bare if key is None else _keyed(bare, key)


def checksum(data: Buffer) -> int:
    """XXH3-64: guards framing against accidents, never identity."""
    return xxhash.xxh3_64_intdigest(data)
