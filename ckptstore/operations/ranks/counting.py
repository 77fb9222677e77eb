"""How far one of several ranks is with the bytes of its own state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ckptstore.chunkstore.grouping import Advance, ignore


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts the arrays of a rank. What another rank stores of them is done as soon as that is known.

    Attributes:
        total: their bytes.
        own: path → bytes of what this rank has a hand in; what is tied stands there once.
    """

    advance: Advance = ignore
    total: int = 0
    own: Mapping[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """All is assigned."""
        self.advance(self.total - sum(self.own.values()))

    def done(self, pieces: Iterable[tuple[str, int]]) -> None:
        """With bytes at these paths."""
        count = sum(size for path, size in pieces if path in self.own)
        if count:
            self.advance(count)
