"""Merging reads that lie near each other, for storage where a request costs more than the bytes between them."""

from __future__ import annotations

from collections.abc import Sequence

from ckptstore.errors import InvalidArgument
from ckptstore.storage.base import RangeRead


def coalesce(reads: Sequence[RangeRead], gap: int, most: int) -> list[list[RangeRead]]:
    """Groups of reads, each to be served by one request from its first read's start to its last read's end.

    In a group reads ascend, do not overlap, and lie at most `gap` bytes apart; a group of several spans at most
    `most` bytes. Reads of nothing are left out. Raises InvalidArgument for a negative offset.
    """
    groups: list[list[RangeRead]] = []
    for read in sorted((read for read in reads if len(read.out)), key=lambda read: read.offset):
        if read.offset < 0:
            raise InvalidArgument(f"a read from offset {read.offset}: offsets start at 0")
        if groups and _joins(groups[-1], read, gap, most):
            groups[-1].append(read)
        else:
            groups.append([read])
    return groups


def end_of(read: RangeRead) -> int:
    """The offset just behind a read."""
    return read.offset + len(read.out)


def _joins(group: list[RangeRead], read: RangeRead, gap: int, most: int) -> bool:
    return 0 <= read.offset - end_of(group[-1]) <= gap and end_of(read) - group[0].offset <= most
