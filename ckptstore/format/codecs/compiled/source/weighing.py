"""What coding a plane of a sample comes to, by one compiled call; see `planning`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ckptstore.format.codecs.compiled.plans import COMMON, GAPS, OTHERS
from ckptstore.format.codecs.compiled.source.compiling import Helper, array_at, given, helping, read
from ckptstore.format.codecs.compiled.source.frames import coding
from ckptstore.format.codecs.compiled.source.plans import ADDRESS, INT, NUMBERS, memory_at
from ckptstore.format.codecs.compiled.source.squeezing import squeezer_to_rows
from ckptstore.format.codecs.squeezing import LEAST_COMMON, NARROW, WHOLE, Weight
from ckptstore.format.codecs.words import Plane, Words

_BITS, _OFFSET, _SIZE, _SYMBOLS, _CODED, _GAPS = range(len(Weight._fields))
_TABLE = 1 + len(NARROW), len(Weight._fields)
_BYTES = 256
_WHOLE_COUNTS, _COUNTS = 0, 1
"""Rows of memory where counts lie, which otherwise are of planes."""


def weighing() -> Helper:
    """What fills a table with a `Weight` in each row, and gives how many there are."""
    weigh, squeeze, best = _weigher(), squeezer_to_rows(), _best_offset()

    def entry(zstd: Any, plane: Any, size: int, rows: Any, spare: Any, halves: Any, table: Any) -> Any:
        row, fresh, _ = memory_at(rows, spare, halves)
        data, found = array_at(plane, size, np.uint8), array_at(table, _TABLE, np.int64)
        found[:] = 0
        found[0, _BITS] = WHOLE
        counts = row[_WHOLE_COUNTS][: 8 * _BYTES].view(np.int64)
        weigh(zstd, data, fresh, counts, found[0])
        filled = 1
        if not found[0, _CODED]:
            return filled
        for bits in NARROW:
            offset = best(counts, bits, size)
            if offset < 0:
                break
            others = squeeze(data, bits, offset, row)
            into = found[filled]
            into[_BITS], into[_OFFSET], into[_GAPS] = bits, offset, others
            apart = row[_COUNTS][: 8 * _BYTES].view(np.int64)
            weigh(zstd, row[COMMON][: (size * bits + WHOLE - 1) // WHOLE], fresh, apart, into)
            weigh(zstd, row[GAPS][:others], fresh, apart, into)
            weigh(zstd, row[OTHERS][:others], fresh, apart, into)
            filled += 1
        return filled

    return entry


@cache
def _weigher() -> Helper:
    """Adds a part to a row; `counts` says how often each byte is found in it if it is a frame."""
    smallest = coding()

    def weigh(zstd: int, part: Plane, fresh: Plane, counts: Words, row: Words) -> Any:
        size = smallest(zstd, part, fresh)
        row[_SIZE] += size if size >= 0 else part.size
        if size <= 1 or size == part.size:
            return 0
        row[_CODED] += part.size
        counts[:] = 0
        for place in range(part.size):
            counts[part[place]] += 1
        for byte in range(_BYTES):
            row[_SYMBOLS] += counts[byte] > 0
        return 0

    return helping(weigh, INT(ADDRESS, read(1), given(1), NUMBERS, NUMBERS))


@cache
def _best_offset() -> Helper:
    """See `squeezing.best_offset`; below 0 where the share is not enough."""

    def best(counts: Words, bits: int, size: int) -> Any:
        near, within, most, offset = 1 << bits, 0, -1, 0
        for byte in range(near):
            within += counts[byte]
        for byte in range(_BYTES):
            if within > most:
                most, offset = within, byte
            within += counts[(byte + near) % _BYTES] - counts[byte]
        return offset if most / size >= LEAST_COMMON else -1

    return helping(best, INT(NUMBERS, INT, INT))
