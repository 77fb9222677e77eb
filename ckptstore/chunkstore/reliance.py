"""How much of a commit may rest on other chunks: a checkout of all shall take about half as long again at most."""

from __future__ import annotations

from ckptstore.locks import Lock

FEW = 0.88
"""What a difference may be of what its chunk is alone: who reads it reads and decodes another one as well."""
MANY = 0.78
"""The same where chunks that rest on others already add more than `SOME`."""
HALF = 0.5
"""The same beyond `ROOM`, and for chunks that are computed from whole ones, as good as nothing every other time."""
NONE = 0.0
"""The same beyond `MOST`."""
SOME, ROOM, MOST = 0.15, 0.42, 0.47
"""What is added, to what reading the whole commit would take if nothing rested on anything."""


class Reliance:
    """Of one commit, whose chunks several threads encode; all in raw bytes, as if their whole chunks took alike."""

    def __init__(self) -> None:
        self._all = self._added = 0.0
        self._lock = Lock()

    @property
    def share(self) -> float:
        """What the next difference may be of what its chunk is alone."""
        limits = {SOME: FEW, ROOM: MANY, MOST: HALF}
        return next((share for limit, share in limits.items() if self._added <= limit * self._all), NONE)

    def expect(self, size: int) -> None:
        """So many bytes come."""
        with self._lock:
            self._all += size

    def bears(self, added: float) -> bool:
        """Whether there is room for one more chunk that adds so much; it is added then."""
        with self._lock:
            bearable = self._added + added <= ROOM * self._all
            self._added += added if bearable else 0
        return bearable

    def add(self, added: float) -> None:
        """What a chunk adds; less than 0 where it was to add something, and does not."""
        with self._lock:
            self._added += added
