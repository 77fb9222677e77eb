"""What the fingerprints of many tensors tell when they are compared with earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from ckptstore.state.fingerprints import SEGMENT, segments

Span = tuple[int, int]
"""A range of a leaf's bytes."""

Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Prints:
    """The fingerprints of some leaves at one time.

    Attributes:
        sizes: path → bytes of the leaf.
        rows: a row for each segment, one leaf behind the other.
    """

    sizes: Mapping[str, int]
    rows: np.ndarray[Any, np.dtype[np.int64]]

    @cached_property
    def borders(self) -> list[int]:
        """The first row of each leaf, and the end of the last one."""
        return list(accumulate(map(segments, self.sizes.values()), initial=0))

    def changes(self, before: Prints | None) -> dict[str, Flags]:
        """Path → which segments are others than before, for leaves that have such; all when the size is another."""
        flags = self._changed(before)
        sums = np.concatenate([[0], np.cumsum(flags)])[self.borders]
        changed = np.flatnonzero(np.diff(sums)).tolist()
        paths = list(self.sizes)
        return {paths[number]: flags[self.borders[number] : self.borders[number + 1]] for number in changed}

    def _changed(self, before: Prints | None) -> Flags:
        if before is not None and list(before.sizes.items()) == list(self.sizes.items()):
            return np.asarray((before.rows != self.rows).any(axis=1))
        flags = np.ones(len(self.rows), np.bool_)
        older = {} if before is None else dict(before._places())  # noqa: SLF001 - of the same kind
        for leaf, place in self._places():
            if before is not None and leaf in older:
                flags[place] = (self.rows[place] != before.rows[older[leaf]]).any(axis=1)
        return flags

    def _places(self) -> Iterator[tuple[tuple[str, int], slice]]:
        return zip(self.sizes.items(), map(slice, self.borders, self.borders[1:]), strict=True)


def changed_spans(changed: Flags, size: int) -> list[Span]:
    """Runs of changed segments, of a leaf of `size` bytes."""
    borders = np.flatnonzero(np.diff(changed, prepend=False, append=False)) * SEGMENT
    return [(start, min(stop, size)) for start, stop in borders.reshape(-1, 2).tolist()]


def touches(changed: Flags, span: Span) -> bool:
    """Whether a changed segment has bytes of the span."""
    return bool(changed[span[0] // SEGMENT : -(-span[1] // SEGMENT)].any())
