"""The chunks of a commit that lie on devices: those that the store holds stay there, the others are on their way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise

from ckptstore.chunkstore import ChunkWriter
from ckptstore.format.grid import Grid
from ckptstore.state.device_leaf import DeviceLeaf, bring_all
from ckptstore.state.prints import Span


class Arrivals:
    """Of leaves with the grids of their chunks, in the order in which their chunks are asked for."""

    def __init__(self, writer: ChunkWriter, grids: Mapping[DeviceLeaf, Grid]) -> None:
        self._spans = {leaf: _spans(leaf, grid) for leaf, grid in grids.items()}
        known = (leaf.digests.get(span) for leaf, spans in self._spans.items() for span in spans)
        self._held = writer.rely_on([digest for digest in known if digest is not None])
        self._missing = {leaf: self._numbers(leaf) for leaf in grids}
        wanted = ((leaf, self._spans[leaf][number]) for leaf in grids for number in self._missing[leaf])
        self._contents = bring_all(wanted)

    def missing(self, leaf: DeviceLeaf) -> Sequence[int]:
        """Numbers of the chunks that the store is not known to hold."""
        return self._missing[leaf]

    def next(self) -> memoryview:
        """The bytes of the next one of these."""
        return next(self._contents)

    def digests(self, leaf: DeviceLeaf, written: Iterator[bytes]) -> bytes:
        """Those of all chunks, one after the other; `written` tells those of the missing ones. The leaf learns them."""
        missing = [self._spans[leaf][number] for number in self._missing[leaf]]
        leaf.digests.update(zip(missing, islice(written, len(missing)), strict=True))
        return b"".join(leaf.digests[span] for span in self._spans[leaf])

    def _numbers(self, leaf: DeviceLeaf) -> list[int]:
        spans = self._spans[leaf]
        return [number for number, span in enumerate(spans) if leaf.digests.get(span) not in self._held]


def _spans(leaf: DeviceLeaf, grid: Grid) -> list[Span]:
    return list(pairwise(accumulate(grid.sizes(leaf.itemsize), initial=0)))
