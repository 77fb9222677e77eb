"""How much of a commit may rest on other chunks: a checkout shall take at most half as long again for that."""

from __future__ import annotations

from ckptstore.locks import Lock

FEW = 0.88
"""What a difference may be of what its chunk is alone: who reads it reads and decodes another one as well."""
MANY = 0.8
"""The same where differences already add more than `ROOM`."""
ROOM = 0.45
"""Bytes of differences, to the bytes that all chunks of the commit are when whole."""


class Reliance:
    """Of one commit, whose chunks several threads encode."""

    def __init__(self) -> None:
        self._alone = self._added = 0
        self._lock = Lock()

    @property
    def share(self) -> float:
        """What the next difference may be of what its chunk is alone."""
        return FEW if self._added <= ROOM * self._alone else MANY

    def count(self, alone: int, added: int) -> None:
        """One more chunk: what is read of whole chunks for it, and beside that."""
        with self._lock:
            self._alone += alone
            self._added += added
