"""Cutting pieces on their way in into windows, and what is new of these into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptstore.chunkstore.encoding import Piece
from ckptstore.chunkstore.grouping import groups

Item = tuple[bytes, Piece]
"""A piece under its digest."""

NEIGHBOURS = 2
"""How many of the chunks before it a chunk may be made of."""
_BYTES = 1 << 30
_FIRST_BYTES = 64 << 20
"""Windows grow: the first packs are put soon, and the catalog is asked rarely all the same."""
COPIES = 16 << 20
_LOANS = 64 << 20
CHUNKS = 1 << 12


def cut(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Consecutive groups, with bounds on what is copied and on loan beside the bound on what is looked at."""
    window: list[Piece] = []
    size = copies = loans = 0
    most = min(_FIRST_BYTES, _BYTES)
    for piece in pieces:
        window.append(piece)
        size += len(piece.data)
        copies += len(piece.data) if piece.copied else 0
        loans += len(piece.data) if piece.loan is not None and not piece.likely_new else 0
        full = size >= most or copies >= COPIES or loans >= _LOANS
        if (full or len(window) >= CHUNKS) and not piece.goes_on:
            yield window
            window, size, copies, loans = [], 0, 0, 0
            most = min(2 * most, _BYTES)
    if window:
        yield window


def together(items: Iterable[Item], most_bytes: int, most_items: int) -> Iterator[list[Item]]:
    """Like `groups`; chunks that may be made of each other stay together."""
    for some in groups(_runs(items), lambda run: sum(len(piece.data) for _, piece in run), most_bytes, most_items):
        yield [item for run in some for item in run]


def _runs(items: Iterable[Item]) -> Iterator[list[Item]]:
    run: list[Item] = []
    for item in items:
        if run and (len(run) > NEIGHBOURS or not (run[-1][1].goes_on and item[1].made)):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
