"""What the fingerprints of many tensors show when they are compared with earlier ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from ckptstore.cached import cached_property
from ckptstore.state.devices.fingerprints import SEGMENT, segments

Span = tuple[int, int]
"""A range of a leaf's bytes."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Prints:
    """The fingerprints of some leaves at one time.

    Attributes:
        sizes: path → bytes of the leaf.
        rows: a row for each segment, one leaf behind the other.
    """

    sizes: Mapping[str, int]
    rows: Rows

    @cached_property
    def borders(self) -> list[int]:
        """The first row of each leaf, and the end of the last one."""
        return list(accumulate(map(segments, self.sizes.values()), initial=0))

    def changes(self, before: Prints | None) -> dict[str, Flags]:
        """Path → which segments are others than before, for leaves that have such; all when the size is another."""
        flags = self._changed(before)
        filled = np.flatnonzero(np.diff(self.borders))
        of_leaves = np.logical_or.reduceat(flags, np.array(self.borders)[filled]) if len(filled) else filled
        paths = list(self.sizes)
        changed = filled[of_leaves.astype(np.bool_)].tolist()
        return {paths[number]: flags[self.borders[number] : self.borders[number + 1]] for number in changed}

    def _changed(self, before: Prints | None) -> Flags:
        if before is not None and list(before.sizes.items()) == list(self.sizes.items()):
            return _differ(before.rows, self.rows)
        flags = np.ones(len(self.rows), np.bool_)
        older = {} if before is None else dict(before._places())  # noqa: SLF001 - of the same kind
        for leaf, place in self._places():
            if before is not None and leaf in older:
                flags[place] = _differ(self.rows[place], before.rows[older[leaf]])
        return flags

    def _places(self) -> Iterator[tuple[tuple[str, int], slice]]:
        return zip(self.sizes.items(), map(slice, self.borders, self.borders[1:]), strict=True)


def unlike_any(sizes: Mapping[str, int]) -> Rows:
    """Rows that stand for fingerprints nobody knows: random ones, so that all has changed."""
    return np.frombuffer(os.urandom(16 * sum(map(segments, sizes.values()))), np.int64).reshape(-1, 2)


def changed_spans(changed: Flags, size: int, gap: int = 0) -> list[Span]:
    """Runs of changed segments, of a leaf of `size` bytes; with what lies between two where that is at most `gap`."""
    if changed.all():
        return [(0, size)]
    starts, stops = (np.flatnonzero(np.diff(changed, prepend=False, append=False)) * SEGMENT).reshape(-1, 2).T
    apart = starts[1:] - stops[:-1] > gap
    first, last = np.concatenate([[True], apart]), np.concatenate([apart, [True]])
    return list(zip(starts[first].tolist(), np.minimum(stops[last], size).tolist(), strict=True))


def untouched(digests: Mapping[Span, bytes], changed: Flags) -> dict[Span, bytes]:
    """Those of spans of which no changed segment has bytes."""
    if changed.all():
        return {}
    return {
        span: digest
        for span, digest in digests.items()
        if not changed[span[0] // SEGMENT : -(-span[1] // SEGMENT)].any()
    }


def _differ(before: Rows, now: Rows) -> Flags:
    """Column by column: reductions of rows so short are several times as slow."""
    differ = before != now
    found: Flags = differ[:, 0] | differ[:, 1]
    return found
