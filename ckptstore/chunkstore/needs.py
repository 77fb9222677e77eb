"""The memory that reading one chunk takes: one sum for who reads it, and for who writes what others shall read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckptstore.catalog.records import ChunkLocation
from ckptstore.errors import BudgetTooSmall, InvalidArgument
from ckptstore.format.codecs import RAW, ZSTD
from ckptstore.storage.base import GAP

DEFAULT_BUDGET = 128 << 20
"""Bytes that reading may hold beyond its destinations when nobody says how many; more where one chunk needs more."""
_MOST = 16 * DEFAULT_BUDGET
"""Where one chunk claims to rest on more than any writer lets it, as in a hostile store, somebody has to say so."""
_SHARE = 4
"""Who holds something himself while chunks are read takes at most this part of the budget for it."""
_BLOCK_BYTES = 1 << 20
_BLOCKS_HELD = 7
"""What codecs of numbers hold beside while they decode, measured where they hold most: differences of 8 bytes."""
_WHOLE = {RAW.number, ZSTD.number}
"""Codecs that decode straight into the destination."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a store's bytes come.

    Attributes:
        sealed: whether payloads are encrypted, so that each is held twice while it is opened.
        copies: how often the storage holds what it reads.
    """

    sealed: bool
    copies: int

    def scratch(
        self,
        location: ChunkLocation,
        bases: Collection[ChunkLocation],
        *,
        direct: bool = False,
        placed: bool = False,
        gap: int = 0,
    ) -> int:
        """Bytes held on the way to a chunk that rests on others, of which `bases` are all.

        Less when its payload is read `direct` to where it belongs, or when its bytes are `placed` there; more when the
        storage reads the `gap` before it too.
        """
        held = 0 if direct else location.length * (1 + self.sealed)
        held += 0 if placed or location.codec == RAW.number else location.raw_length
        return held + self.copies * (location.length + gap) + sum(self.beneath(base) for base in bases)

    def beneath(self, base: ChunkLocation) -> int:
        """Bytes held of a chunk that another one rests on."""
        return base.raw_length + base.length * (1 + self.sealed) + self.copies * (base.length + GAP)

    def is_light(self, location: ChunkLocation, bases: Collection[ChunkLocation]) -> bool:
        """Whether everybody who is given no budget can read such a chunk within the usual one."""
        return self.scratch(location, bases) + decoding_bytes([*bases, location]) <= DEFAULT_BUDGET - share(None, 0)


def decoding_bytes(places: Collection[ChunkLocation]) -> int:
    """Bytes that a codec holds beside while it decodes these; one chunk of a batch does so at a time."""
    largest = 0
    for place in places:
        if place.codec not in _WHOLE:
            largest = max(largest, place.raw_length)
    return _BLOCKS_HELD * min(largest, _BLOCK_BYTES)


def share(budget: int | None, largest: int) -> int:
    """The part of a budget for what is held while chunks are read: a quarter, or the largest piece of it."""
    return max(largest, (DEFAULT_BUDGET if budget is None else budget) // _SHARE)


def granted(budget: int | None, needed: int, what: str, beside: int = 0) -> int:
    """What may be held: the budget, or by default the usual one and more where `needed` and what is `beside` are more.

    Raises BudgetTooSmall, or InvalidArgument for what is no budget.
    """
    if budget is None:
        budget = max(DEFAULT_BUDGET, min(needed + beside, _MOST))
    if not isinstance(budget, int):
        raise InvalidArgument(f"memory_budget_bytes={budget!r}: give an int")
    if needed + beside > budget:
        also = f", beside {beside} that are held meanwhile" if beside else ""
        enough = needed + (max(beside, needed // (_SHARE - 1) + 1) if beside else 0)  # a share grows with the budget
        raise BudgetTooSmall(f"a budget of {budget} bytes, but {what} needs {needed}{also}: give at least {enough}")
    return budget
