"""Leaves of a commit back into memory, straight into their destinations where these are plain memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
import numpy as np

from ckptstore.chunkstore import DEFAULT_BUDGET, ChunkStore, Fetch
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.format.grid import Grid, Index
from ckptstore.format.manifest import Entry, TensorEntry, Value, ValueEntry, chunk_digests
from ckptstore.format.selection import Part, Selection, contiguous_span, everything
from ckptstore.state.tensors import Array, allocate, finish, writable_bytes, write_box
from ckptstore.state.values import decode


def load_leaves(
    chunks: ChunkStore,
    entries: Mapping[str, Entry],
    targets: Mapping[str, Array],
    *,
    same: Iterable[tuple[str, ...]] = (),
    allow_pickle: bool = False,
    budget: int = DEFAULT_BUDGET,
    advance: Advance = ignore,
) -> dict[str, object]:
    """Every leaf of `entries`: tensors in their target where there is one, newly made otherwise; values decoded.

    Paths in one group of `same` that have no target of their own come back as one and the same tensor.
    """
    first = {path: group[0] for group in (_present(group, entries, targets) for group in same) for path in group[1:]}
    arrays: dict[str, Array] = {}
    large: dict[str, bytearray] = {}
    wishes: list[Fetch] = []
    for path, entry in entries.items():
        if isinstance(entry, ValueEntry):
            if entry.chunks:
                large[path] = bytearray(entry.size)
                wishes += _value_fetches(entry, large[path], chunks.digest.size, path)
        elif path not in first:
            arrays[path] = targets[path] if path in targets else allocate(entry)
            wishes += array_fetches(entry, arrays[path], everything(entry.shape), chunks.digest.size, path)
    chunks.fetch(wishes, budget=budget, advance=advance)
    made: dict[str, object] = {}
    for path, entry in entries.items():
        if isinstance(entry, ValueEntry):
            value: Value = msgspec.msgpack.decode(large[path]) if path in large else entry.value
            made[path] = decode(value, path, allow_pickle=allow_pickle)
        elif path in first:
            made[path] = made[first[path]]
        else:
            made[path] = arrays[path] if path in targets else finish(arrays[path], entry)
    return made


def array_fetches(
    entry: TensorEntry, target: Array, selection: Selection, digest_size: int, label: str
) -> list[Fetch]:
    """The wishes that fill `target`, of shape `selection.full_shape`, with the selected elements.

    Bytes kept inline are filled in at once.
    """
    grid = Grid(entry.shape, entry.chunk_shape)
    if not entry.chunks:
        for part in selection.parts(Grid(entry.shape, tuple(max(extent, 1) for extent in entry.shape))):
            _place(target, entry, entry.shape, part, memoryview(entry.inline))
        return []
    plain = writable_bytes(target)
    digests = chunk_digests(entry, digest_size)
    return [
        _array_fetch(entry, target, plain, part, grid, digests[part.number], selection.full_shape, label)
        for part in selection.parts(grid)
    ]


def _array_fetch(
    entry: TensorEntry,
    target: Array,
    plain: memoryview | None,
    part: Part,
    grid: Grid,
    digest: bytes,
    target_shape: Index,
    label: str,
) -> Fetch:
    start, stop = grid.box(part.number)
    extent = tuple(high - low for low, high in zip(start, stop, strict=True))
    size = int(np.prod(extent, dtype=np.int64)) * entry.itemsize
    span = contiguous_span(target_shape, part.start, part.stop) if part.whole else None
    if plain is not None and span is not None:
        out = plain[span[0] * entry.itemsize : (span[0] + span[1]) * entry.itemsize]
        return Fetch(digest, size, label, out=out)
    return Fetch(digest, size, label, deliver=partial(_place, target, entry, extent, part))


def _place(target: Array, entry: TensorEntry, extent: Index, part: Part, data: memoryview) -> None:
    if not part.whole:
        elements = np.frombuffer(data, dtype=f"V{entry.itemsize}").reshape(extent)
        data = memoryview(elements[part.source].tobytes())
    write_box(target, part.start, part.stop, data)


def _value_fetches(entry: ValueEntry, out: bytearray, digest_size: int, label: str) -> list[Fetch]:
    view = memoryview(out)
    return [
        Fetch(digest, len(piece), label, out=piece)
        for number, digest in enumerate(chunk_digests(entry, digest_size))
        for piece in (view[number * entry.chunk_size : (number + 1) * entry.chunk_size],)
    ]


def _present(group: tuple[str, ...], entries: Mapping[str, Entry], targets: Mapping[str, Array]) -> list[str]:
    return [path for path in group if path in entries and path not in targets] or [""]
