"""Tables of text: plain columns, no frames. Fast for 10,000 rows, which rich's are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, chop_cells, set_cell_size

_GAP = "  "
_NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """A column. One that may `fold` goes on in the next line where the table is too wide, one that may `crop` loses
    its end.
    """

    title: str
    right: bool = False
    fold: bool = False
    crop: bool = False


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """The table's lines, the first of them its head. None for a width is as wide as it gets."""
    everything = [[column.title for column in columns], *rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*everything, strict=True)]
    if width is not None:
        _squeeze(columns, widths, width)
    for row in everything:
        cells = [_broken(cell, column, size) for cell, column, size in zip(row, columns, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (_padded(part, column, size) for part, column, size in zip(parts, columns, widths, strict=True))
            yield _GAP.join(padded).rstrip()


def cropped(text: str, width: int) -> str:
    """The beginning of a text that is too long, with "…" for the rest."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _squeeze(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Take from the widest columns that can give until the table fits or nothing is left to give."""
    giving = [place for place, column in enumerate(columns) if column.fold or column.crop]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        widest = max(giving, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        excess -= 1


def _broken(cell: str, column: Column, width: int) -> list[str]:
    if cell_len(cell) <= width:
        return [cell]
    return chop_cells(cell, width) if column.fold else [cropped(cell, width)]


def _padded(text: str, column: Column, width: int) -> str:
    blank = " " * (width - cell_len(text))
    return blank + text if column.right else text + blank
