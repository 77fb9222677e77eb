"""Arrays of a commit, as bytes, to who puts them elsewhere; none of them is in memory whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ckptstore.chunkstore import ChunkStore, Fetch
from ckptstore.chunkstore.grouping import Advance
from ckptstore.format.grid import Grid, grid_of
from ckptstore.format.manifest import TensorEntry, chunk_digests
from ckptstore.format.selection import contiguous_spans

Put = Callable[[int, memoryview], None]
"""Who gets row-major bytes of an array, behind the place of their first one; they are only there during the call."""


def pour(chunks: ChunkStore, entries: Mapping[str, TensorEntry], puts: Mapping[str, Put], *, advance: Advance) -> None:
    """Give the bytes of every array to its `put`, in any order and any thread; some may come twice.

    Raises CorruptData, MissingData, naming the path.
    """
    for path, entry in entries.items():
        if not entry.chunks:
            puts[path](0, memoryview(entry.inline))
    wishes = [wish for path, entry in entries.items() for wish in _wishes(chunks, path, entry, puts[path])]
    chunks.fetch(wishes, advance=advance)


def _wishes(chunks: ChunkStore, path: str, entry: TensorEntry, put: Put) -> Iterator[Fetch]:
    grid = grid_of(entry.shape, entry.chunk_shape)
    sizes = grid.sizes(entry.itemsize) if entry.chunks else ()
    for number, (digest, size) in enumerate(zip(chunk_digests(entry, chunks.digest.size), sizes, strict=True)):
        yield Fetch(digest, size, path, deliver=partial(_deliver, grid, number, entry.itemsize, put))


def _deliver(grid: Grid, number: int, itemsize: int, put: Put, data: memoryview) -> None:
    for first, count in contiguous_spans(grid.shape, *grid.box(number)):
        put(first * itemsize, data[: count * itemsize])
        data = data[count * itemsize :]
