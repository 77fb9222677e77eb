"""The seam between ckptstore and the place where bytes lie.

Six verbs, because the protocol needs no more: objects are written whole, once, under a key that nobody else
writes; they are read in ranges; they are never changed. So any folder or object store fits, and no verb needs a
lock. What a wrapper adds (retry, limits, faults, latency) it adds to these six.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from ckptstore.format.buffers import Buffer

GAP = 128 << 10
"""Ranges that lie no farther apart may become one request."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object.

    Attributes:
        key: its name, `/`-separated, relative to the store's root.
        size: its length in bytes.
        modified: when it was written, in seconds since 1970 on the storage's clock.
    """

    key: str
    size: int
    modified: float


class RangeRead(msgspec.Struct, frozen=True, gc=False):
    """A wish for `len(out)` bytes of an object, from `offset` on, to be written into `out`."""

    offset: int
    out: memoryview


@runtime_checkable
class Storage(Protocol):
    """Where objects lie. Every method may be called from several threads at once, and of a pickled copy."""

    @property
    def url(self) -> str:
        """Where this is, for messages; never holds a password."""

    @property
    def copies(self) -> int:
        """How many times `get_ranges` may hold what it reads, beside the buffers; 0 where it reads into them.

        What it reads are the ranges and, where two lie at most `GAP` bytes apart, what is between them.
        """

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store the concatenation of `parts` under `key`, durably: when this returns, a power cut loses nothing.

        Either the whole object appears or none; readers never see a part.

        Raises:
            ObjectExists: the key is taken; what lies there is untouched.
            StorageFull, StorageReadOnly, StorageError: nothing was stored.
            StorageUnavailable: nobody knows whether it was.
        """

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound, and CorruptData where the disk lost it."""

    def get_ranges(self, key: str, reads: Sequence[RangeRead]) -> None:
        """Fill the buffer of every read; an implementation may merge near ranges into one request.

        Raises:
            ObjectNotFound: no such object.
            CorruptData: the object ends before a range does, or the disk lost it.
        """

    def head(self, key: str) -> ObjectInfo:
        """What is known of an object without reading it. Raises ObjectNotFound."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, in no set order. Unfinished writes are not listed."""

    def delete(self, key: str) -> None:
        """Remove an object. Removing what is not there is success: a crash may have come between two tries."""


@runtime_checkable
class Sweeping(Protocol):
    """A storage in which killed writers leave something that `list` does not show."""

    def sweep_temporary(self, prefix: str, older_than_seconds: float) -> int:
        """Remove what was to be objects whose keys start so, and nobody wrote to for so long; how many there were.

        A writer that lives still fails cleanly.
        """


@runtime_checkable
class Closing(Protocol):
    """A storage that keeps something between calls, such as open files."""

    def close(self) -> None:
        """Give it back. The storage may be used again, and then keeps things again."""
