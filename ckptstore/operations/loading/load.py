"""Leaves of a commit back into memory, straight into their destinations where these are plain memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from ckptstore.chunkstore import ChunkStore, Fetch
from ckptstore.chunkstore.grouping import Advance, Stopping, ignore
from ckptstore.chunkstore.needs import granted, share
from ckptstore.chunkstore.scratch import Scratch
from ckptstore.errands import uninterrupted
from ckptstore.errors import CorruptData, StateError
from ckptstore.format.codecs.words import Plane
from ckptstore.format.grid import Grid, Index, extents, grid_of
from ckptstore.format.manifest import Entry, TensorEntry, Value, ValueEntry, chunk_digests
from ckptstore.format.selection import Part, Selection, contiguous_span, everything
from ckptstore.state.addresses import lacks_address
from ckptstore.state.arrays import Array, flat_bytes, is_row_major, mark_changed, writable_array
from ckptstore.state.casts import cast_from
from ckptstore.state.devices.uploads import Uploads, lane_of_array
from ckptstore.state.new_arrays import allocate, finish, fresh
from ckptstore.state.shards import Region
from ckptstore.state.values import decode


def load_values(
    chunks: ChunkStore, entries: Mapping[str, Entry], *, allow_pickle: bool, budget: int | None
) -> dict[str, object]:
    """Every plain value among the entries, decoded."""
    values = {path: entry for path, entry in entries.items() if isinstance(entry, ValueEntry)}
    large = {path: _reserve(path, entry.size) for path, entry in values.items() if entry.chunks}
    wishes = [wish for path, out in large.items() for wish in _value_fetches(values[path], out, chunks, path)]
    chunks.fetch(wishes, budget=budget)
    encoded = {path: _unpacked(path, large[path]) if path in large else entry.value for path, entry in values.items()}
    return {path: decode(value, path, allow_pickle=allow_pickle) for path, value in encoded.items()}


def load_arrays(
    chunks: ChunkStore,
    entries: Mapping[str, Entry],
    targets: Mapping[str, Array],
    *,
    same: Iterable[tuple[str, ...]],
    regions: Mapping[str, Sequence[Region]] | None = None,
    budget: int | None,
    advance: Advance = ignore,
) -> dict[str, object]:
    """Every array among the entries: in its target where there is one, newly made otherwise.

    A target that has `regions` is a part of an array, and takes these alone. Paths in one group of `same` come back as
    one array: the first one's.
    """
    wanted = {path: entry for path, entry in entries.items() if isinstance(entry, TensorEntry)}
    first = {path: group[0] for group in _present(same, wanted) for path in group[1:] if path not in targets}
    arrays = {
        path: targets[path] if path in targets else allocate(path, entry)
        for path, entry in wanted.items()
        if path not in first
    }
    parts = regions or {}
    jobs = [job for path, array in arrays.items() for job in _fillings(wanted[path], array, parts.get(path), path)]
    fill(chunks, jobs, budget=budget, advance=advance)
    made = {path: array if path in targets else finish(path, array, wanted[path]) for path, array in arrays.items()}
    return {path: made[first.get(path, path)] for path in wanted}


class Filling(msgspec.Struct, frozen=True):
    """An array, of shape `selection.full_shape`, that takes selected elements of an entry; `label` is for errors."""

    entry: TensorEntry
    target: Array
    selection: Selection
    label: str


def _fillings(entry: TensorEntry, array: Array, regions: Sequence[Region] | None, path: str) -> Iterator[Filling]:
    if regions is None:
        yield Filling(entry, array, everything(entry.shape), path)
    for region in regions or ():
        assert isinstance(array, torch.Tensor)
        yield Filling(entry, region.of(array), region.selection, path)


def fill(
    chunks: ChunkStore, jobs: Sequence[Filling], *, budget: int | None, beside: int = 0, advance: Advance = ignore
) -> None:
    """Fill every array, with what the caller holds `beside` as part of the budget; see `ChunkStore.fetch`.

    What has another dtype is cast, a slice of a chunk at a time.
    Nothing was written when BudgetTooSmall or MissingData is raised.
    """
    reached = [_reached(job) for job in jobs]
    _fill(chunks, reached, budget, beside, advance)
    for job, filled in zip(jobs, reached, strict=True):
        if filled is not job:
            torch.as_tensor(job.target).detach().copy_(torch.as_tensor(filled.target))


def _reached(job: Filling) -> Filling:
    """The job, or one on the host if its target is nowhere that threads could write."""
    if not lacks_address(job.target):
        return job
    target = torch.as_tensor(job.target)
    return replace(job, target=fresh(target.dtype, target.shape))


def _fill(chunks: ChunkStore, jobs: Sequence[Filling], budget: int | None, beside: int, advance: Advance) -> None:
    there = [_on_device(job, chunks) for job in jobs]
    moved = [job for job, flat in zip(jobs, there, strict=True) if flat is None and job.entry.chunks]
    most = _most_under_way(moved, budget)
    uploads = Uploads([job.target for job in jobs], most or share(budget, 0))
    sent = any(flat is not None for flat in there)
    scratch = Scratch(uploads.memory, uploads.finish) if sent else None
    wishes = [wish for job, flat in zip(jobs, there, strict=True) for wish in _fetches(job, flat, chunks, uploads)]
    for job in jobs:
        mark_changed(job.target)

    def bring(advance: Advance) -> None:
        try:
            chunks.fetch(wishes, budget=budget, beside=beside + most, advance=advance, scratch=scratch)
            for job in jobs:
                if not job.entry.chunks:
                    _place_inline(job, uploads)
        finally:
            uploads.finish()

    if uploads.lanes:  # on whose way nothing may be any more when an interrupted caller goes on
        stopping = Stopping()
        uninterrupted(partial(bring, stopping.watched(advance)), stopping.stop)
    else:
        bring(advance)


def _most_under_way(jobs: Sequence[Filling], budget: int | None) -> int:
    """The part of the budget for what is on its way to devices beside the memory that chunks are read to."""
    there = [job for job in jobs if lane_of_array(job.target) is not None]
    largest = max((prod(job.entry.chunk_shape) * job.target.itemsize for job in there), default=0)
    granted(budget, largest, "one chunk")
    return share(budget, largest) if largest else 0


def _reserve(path: str, size: int) -> memoryview:
    """Memory that is not touched before there is something to put there, since the size is only a claim."""
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise StateError(f"no memory for {path!r} of {size} bytes") from error


def _unpacked(path: str, data: memoryview) -> Value:
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"{path!r}: its value does not decode: {error}") from error


def _place_inline(job: Filling, uploads: Uploads) -> None:
    entry, target = job.entry, job.target
    whole, dtype = Grid(entry.shape, tuple(max(extent, 1) for extent in entry.shape)), cast_from(entry, target)
    for part in job.selection.parts(whole):
        _place(uploads, target, entry, dtype, entry.shape, part, memoryview(entry.inline))


def _fetches(job: Filling, flat: torch.Tensor | None, chunks: ChunkStore, uploads: Uploads) -> Iterator[Fetch]:
    if not job.entry.chunks:
        return
    entry, target, selection, label = job.entry, job.target, job.selection, job.label
    grid = grid_of(entry.shape, entry.chunk_shape)
    digests = chunk_digests(entry, chunks.digest.size)
    if flat is not None:
        yield from _uploaded(flat, grid.sizes(entry.itemsize), digests, label, uploads)
        return
    dtype, there = cast_from(entry, target), lane_of_array(target) is not None
    plain = writable_array(target) if not there and dtype is None else None
    if plain is not None and _lies_alike(job, grid):
        yield from _pieces(plain, grid.sizes(entry.itemsize), digests, label)
        return
    place = partial(_place, uploads, target, entry, dtype)
    for part in selection.parts(grid):
        yield _array_fetch(entry, place, plain, part, grid, digests[part.number], selection.full_shape, label)


def _lies_alike(job: Filling, grid: Grid) -> bool:
    """Whether the elements of a target in row-major order are those of the chunks, one behind the other."""
    return job.selection.full_shape == job.entry.shape and grid.is_consecutive


def _on_device(job: Filling, chunks: ChunkStore) -> torch.Tensor | None:
    """The bytes of a target that lies on a device and takes its chunks as they are read; else None.

    What is sealed is opened to memory of its own, which a device does not reach.
    """
    entry, target = job.entry, job.target
    if not entry.chunks or lane_of_array(target) is None or cast_from(entry, target) is not None or chunks.sealer:
        return None
    assert isinstance(target, torch.Tensor)
    alike = is_row_major(target) and _lies_alike(job, grid_of(entry.shape, entry.chunk_shape))
    with torch.inference_mode(mode=False):  # or threads, which are not in that mode, could not write there
        return flat_bytes(target) if alike else None


def _array_fetch(
    entry: TensorEntry,
    place: Callable[[Index, Part, memoryview], None],
    plain: Plane | None,
    part: Part,
    grid: Grid,
    digest: bytes,
    target_shape: Index,
    label: str,
) -> Fetch:
    start, stop = grid.box(part.number)
    extent = extents(start, stop)
    size = prod(extent) * entry.itemsize
    span = contiguous_span(target_shape, part.start, part.stop) if part.whole else None
    if plain is not None and span is not None:
        out = plain[span[0] * entry.itemsize : (span[0] + span[1]) * entry.itemsize]
        return Fetch(digest, size, label, out=out)
    return Fetch(digest, size, label, deliver=partial(place, extent, part))


def _place(
    uploads: Uploads,
    target: Array,
    entry: TensorEntry,
    dtype: torch.dtype | None,
    extent: Index,
    part: Part,
    data: memoryview,
) -> None:
    if not part.whole and len(data):  # numpy counts no elements of 0 bytes
        elements = np.frombuffer(data, dtype=f"V{entry.itemsize}").reshape(extent)
        data = memoryview(elements[part.source].tobytes())
    uploads.write(target, part.start, part.stop, data, dtype)


def _value_fetches(entry: ValueEntry, out: memoryview, chunks: ChunkStore, label: str) -> list[Fetch]:
    sizes = Grid((entry.size,), (entry.chunk_size,)).sizes(1)
    return list(_pieces(out, sizes, chunk_digests(entry, chunks.digest.size), label))


def _pieces(out: memoryview | Plane, sizes: Sequence[int], digests: Sequence[bytes], label: str) -> Iterator[Fetch]:
    """Chunks that lie one behind the other."""
    at = 0
    for size, digest in zip(sizes, digests, strict=True):
        yield Fetch(digest, size, label, out=out[at : at + size])
        at += size


def _uploaded(
    target: torch.Tensor, sizes: Sequence[int], digests: Sequence[bytes], label: str, uploads: Uploads
) -> Iterator[Fetch]:
    """The same of a device's memory."""
    for part, digest in zip(torch.split(target, list(sizes)), digests, strict=True):
        yield Fetch(digest, len(part), label, deliver=partial(uploads.send, part))


def _present(groups: Iterable[tuple[str, ...]], known: Mapping[str, object]) -> list[list[str]]:
    present = ([path for path in group if path in known] for group in groups)
    return [group for group in present if len(group) > 1]
