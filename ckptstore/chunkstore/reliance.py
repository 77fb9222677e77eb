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
_USUAL = 1.6
"""What reading a byte takes of a chunk that is still to be encoded, as `Encoded.alone` does: of most it takes more."""


class Reliance:
    """Of one commit, whose chunks several threads encode."""

    def __init__(self) -> None:
        self._all = self._encoded = self._asked = 0
        self._alone = self._added = self._computed = 0.0
        self._lock = Lock()

    @property
    def share(self) -> float:
        """What the next difference may be of what its chunk is alone."""
        limits = {SOME: FEW, ROOM: MANY, MOST: HALF}
        with self._lock:  # or what is recorded only in part is taken for all
            level = self._level()
        return next((share for limit, share in limits.items() if level <= limit), NONE)

    def ask(self, size: int) -> float:
        """The `share` for a difference of so many raw bytes, which counts as one that is taken until it is recorded."""
        with self._lock:
            share = self.share
            self._asked += size
        return share

    def expect(self, size: int) -> None:
        """So many raw bytes come."""
        with self._lock:
            self._all += size

    def record(self, size: int, alone: float, added: float, asked: int = 0) -> None:
        """A chunk of so many raw bytes is encoded, of which so many were `asked` for; see `Encoded`."""
        with self._lock:
            self._asked -= asked
            self._encoded += size
            self._alone += size * alone
            self._added += size * added

    def bears(self, computed: float) -> bool:
        """Whether one more chunk may be computed, which adds as much as so many raw bytes of whole ones; it is then."""
        with self._lock:
            bearable = self._level(computed) <= ROOM
            self._computed += computed if bearable else 0
        return bearable

    def release(self, computed: float) -> None:
        """What was to be computed, and is not."""
        with self._lock:
            self._computed -= computed

    def _level(self, more: float = 0.0) -> float:
        """What is added so far, to what reading all takes if nothing rests on anything."""
        if not self._all:
            return 0.0
        coming = max(self._all - self._encoded, 0)
        return (self._computed + more) / self._all + (self._added + self._asked) / (self._alone + _USUAL * coming)
